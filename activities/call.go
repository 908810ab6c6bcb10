package activities

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
)

// CallRequest is the argument of [Caller.CallProvider]. It is written to the
// workflow's history: put no secret into it, that is what Authorize is for.
type CallRequest struct {
	Method string            `json:"method,omitempty"` // empty: GET, or POST with a body
	URL    string            `json:"url"`
	Header map[string]string `json:"header,omitempty"`
	Body   []byte            `json:"body,omitempty"`
	// Gate chooses among several gates of one endpoint. Empty: the only one,
	// or the one without a name.
	Gate string `json:"gate,omitempty"`
	// Weight and Units are what the call takes; see Cost.
	Weight int64            `json:"weight,omitempty"`
	Units  map[string]int64 `json:"units,omitempty"`
}

// CallResponse is the result of [Caller.CallProvider].
type CallResponse struct {
	Status int               `json:"status"`
	Header map[string]string `json:"header,omitempty"` // those that the caller keeps
	Body   []byte            `json:"body,omitempty"`
}

// Caller makes HTTP calls as an activity. The zero Caller works: register
// (&activities.Caller{}).CallProvider with a worker. Safe for concurrent use.
type Caller struct {
	// Authorize adds credentials to a request, in the worker: they never
	// reach a history. nil: none.
	Authorize func(*http.Request) error
	// Base sends the requests. nil: http.DefaultTransport.
	Base http.RoundTripper
	// MaxBody bounds the response's body in bytes. 0: 1 MiB, half of what a
	// Temporal payload may have.
	MaxBody int64
	// KeepHeaders are the response's headers that the result has. nil:
	// Content-Type and Retry-After.
	KeepHeaders []string
	// LeaseHeader and Usage, see Transport.
	LeaseHeader string
	Usage       func(*http.Response) Usage
}

const defaultMaxBody = 1 << 20

// ErrTypeProvider is the type of the error of a call that the provider refused.
// Its details are the CallResponse.
const ErrTypeProvider = "sluice.Provider"

// CallProvider makes one HTTP call under a lease of its gate. A status of 400 or
// more is an error of type ErrTypeProvider: not retryable from 400 to 499 but
// for 408, 409, 425, 429 and the gate's overload statuses.
func (c *Caller) CallProvider(ctx context.Context, in CallRequest) (CallResponse, error) {
	var out CallResponse
	if in.Gate != "" {
		ctx = WithGate(ctx, in.Gate)
	}
	if in.Method == "" {
		in.Method = http.MethodGet
		if len(in.Body) > 0 {
			in.Method = http.MethodPost
		}
	}
	r, err := http.NewRequestWithContext(ctx, in.Method, in.URL, bytes.NewReader(in.Body))
	if err != nil {
		return out, temporal.NewNonRetryableApplicationError("call refused: method or url is not valid", ErrTypeProvider, nil)
	}
	for name, value := range in.Header {
		r.Header.Set(name, value)
	}
	if c.Authorize != nil {
		if err := c.Authorize(r); err != nil {
			return out, fmt.Errorf("authorize: %w", err)
		}
	}
	transport := &Transport{Base: c.Base, LeaseHeader: c.LeaseHeader, Usage: c.Usage, Cost: func(*http.Request) Cost {
		return Cost{Weight: in.Weight, Units: in.Units}
	}}
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return out, err
	}
	defer func() { _ = response.Body.Close() }() // read to its end, or given up
	limit := c.MaxBody
	if limit <= 0 {
		limit = defaultMaxBody
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return out, err
	}
	if int64(len(body)) > limit {
		return out, temporal.NewNonRetryableApplicationError(fmt.Sprintf("response has more than %d bytes; raise MaxBody (a Temporal payload has at most 2 MiB)", limit), ErrTypeProvider, nil)
	}
	out = CallResponse{Status: response.StatusCode, Header: c.kept(response.Header), Body: body}
	if response.StatusCode < 400 {
		return out, nil
	}
	return out, temporal.NewApplicationErrorWithOptions(fmt.Sprintf("provider answered %d %s", out.Status, http.StatusText(out.Status)), ErrTypeProvider,
		temporal.ApplicationErrorOptions{NonRetryable: !isRetryable(ctx, r, response), Details: []any{out}})
}

func (c *Caller) kept(h http.Header) map[string]string {
	names := c.KeepHeaders
	if names == nil {
		names = []string{"Content-Type", "Retry-After"}
	}
	kept := map[string]string{}
	for _, name := range names {
		if values := h.Values(name); len(values) > 0 {
			kept[http.CanonicalHeaderKey(name)] = strings.Join(values, ", ")
		}
	}
	return kept
}

// isRetryable reports whether what the provider answered may go better later.
func isRetryable(ctx context.Context, r *http.Request, response *http.Response) bool {
	if response.StatusCode >= 500 || slices.Contains([]int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}, response.StatusCode) {
		return true
	}
	gates := GatesFrom(ctx)
	if gates == nil {
		return false
	}
	name, _ := ctx.Value(nameKey).(string)
	g, err := gates.ForRequest(r, name)
	if err != nil || g == nil {
		return false
	}
	p := g.Policy()
	return p.ReadHint(response.StatusCode, response.Header, time.Now()).Overload
}
