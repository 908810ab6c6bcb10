package loopback

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Remote is a provider in another process, asked over HTTP. Safe for concurrent use.
type Remote struct {
	URL string // where it listens, as Provider.URL says
}

// CallURL is the address that a call of the run is posted to.
func (r Remote) CallURL(run string) string { return r.URL + callPath(run) }

// Stats asks what was seen of a run so far; the zero value where no call has arrived.
func (r Remote) Stats(ctx context.Context, run string) (s Stats, err error) {
	err = r.get(ctx, "stats", run, &s)
	return s, err
}

// Count asks how far a run is.
func (r Remote) Count(ctx context.Context, run string) (c Count, err error) {
	err = r.get(ctx, "count", run, &c)
	return c, err
}

// Attempts asks for the recorded attempts of a run, in the order of their arrival.
func (r Remote) Attempts(ctx context.Context, run string) (a []Attempt, err error) {
	err = r.get(ctx, "attempts", run, &a)
	return a, err
}

// Post makes one call, with c, and reads the answer to its end. callID may be empty.
// An answer other than 200 is an error that names its status.
func Post(ctx context.Context, c *http.Client, callURL, callID string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, callURL, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	if callID != "" {
		req.Header.Set(HeaderCallID, callID)
	}
	response, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or given up
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("provider answered %d", response.StatusCode)
	}
	return nil
}

func (r Remote) get(ctx context.Context, what, run string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL+"/"+what+"/"+url.PathEscape(run), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or of no use
	if response.StatusCode == http.StatusNotFound {
		return nil // no call has arrived
	}
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		return fmt.Errorf("provider's %s: %w", what, err)
	}
	return nil
}
