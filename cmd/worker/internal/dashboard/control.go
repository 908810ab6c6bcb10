package dashboard

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"sluice/cmd/worker/internal/gateclient"
	"sluice/policy"
	"sluice/workflows"
)

// maxAct bounds the body of an act, in bytes.
const maxAct = 16 << 10

// tokenHeader carries the token.
const tokenHeader = "X-Sluice-Token"

// about says what the page shows, once.
func (s *Server) about(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"namespace": s.o.Namespace, "address": s.o.Address, "control": s.o.Control, "temporal_ui": s.o.TemporalUI,
		"interval_ms": s.o.Interval.Milliseconds(), "keep_ms": s.o.Keep.Milliseconds(), "settable": policy.Settable(), "prefix": workflows.WorkflowIDPrefix,
	})
}

// wish is the body of an act: what the terminal's commands take.
type wish struct {
	Gate string          `json:"gate"`
	ID   string          `json:"id"` // of the act: sent again, it is done once
	Do   workflows.Doing `json:"do"`
	// Set are FIELD=VALUE, as of `worker set`, and For how long they hold; "": until
	// reset.
	Set    []string `json:"set,omitempty"`
	For    string   `json:"for,omitempty"`
	Ticket uint64   `json:"ticket,omitempty"`
	Lease  uint64   `json:"lease,omitempty"`
	Why    string   `json:"why"`
}

// act makes an act, if it may.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	if err := s.mayAct(r); err != nil {
		writeJSON(w, http.StatusForbidden, map[string]string{"error": err.Error()})
		return
	}
	var wanted wish
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAct))
	body.DisallowUnknownFields()
	err := body.Decode(&wanted)
	var o workflows.Operate
	if err == nil {
		o, err = wanted.operate()
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
		return
	}
	o.Who = s.o.Who
	// Whoever closes the page does not take back what was asked for.
	act, err := s.o.Gates.Act(context.WithoutCancel(r.Context()), wanted.Gate, o)
	if err != nil {
		status := http.StatusConflict // refused; the gate says why
		if errors.Is(err, gateclient.ErrNoHost) || errors.Is(err, gateclient.ErrNotRunning) {
			status = http.StatusBadGateway
		}
		writeJSON(w, status, map[string]string{"error": err.Error()})
		return
	}
	s.sampler.wakeUp()
	writeJSON(w, http.StatusOK, act)
}

// mayAct says why a request may not act, or nil.
func (s *Server) mayAct(r *http.Request) error {
	switch {
	case !s.o.Control:
		return errors.New("this page changes nothing: it was started without --allow-control")
	case r.Header.Get("Origin") != "http://"+r.Host:
		return errors.New("the request does not come from this page")
	case r.Header.Get("Content-Type") != "application/json":
		return errors.New("the request is not JSON")
	case subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) != 1:
		return errors.New("the token is missing or wrong; open the address that was printed at the start")
	}
	return nil
}

// operate is the act that is wished for.
func (w *wish) operate() (o workflows.Operate, err error) {
	o = workflows.Operate{ID: w.ID, Do: w.Do, Ticket: w.Ticket, Lease: w.Lease, Why: w.Why}
	switch w.Do {
	case workflows.DoPause, workflows.DoResume, workflows.DoReset:
	case workflows.DoCancelTicket:
		if w.Ticket == 0 {
			return o, errors.New("no ticket is named")
		}
	case workflows.DoRevokeLease:
		if w.Lease == 0 {
			return o, errors.New("no lease is named")
		}
	case workflows.DoSet:
		if len(w.Set) == 0 {
			return o, errors.New("no FIELD=VALUE is given")
		}
		if w.For != "" {
			d, err := time.ParseDuration(w.For)
			if err != nil || d <= 0 {
				return o, fmt.Errorf("for is %q; it may be a duration such as 10m, or empty: until reset", w.For)
			}
			o.For = workflows.Duration(d)
		}
		o.Set, err = gateclient.SetValues(w.Set)
	default:
		err = fmt.Errorf("do is %q, which nobody can", w.Do)
	}
	return o, err
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the browser may have gone
}
