package loopback

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"
)

// maxBody is how much of a request's body is read. The content is ignored.
const maxBody = 1 << 20

// ServeHTTP answers calls and statistics; see the package comment for the routes.
func (p *Provider) ServeHTTP(w http.ResponseWriter, req *http.Request) { p.mux.ServeHTTP(w, req) }

func (p *Provider) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/runs/{run}/call", func(w http.ResponseWriter, req *http.Request) {
		p.serveCall(w, req, req.PathValue("run"))
	})
	mux.HandleFunc("POST /v1/call", func(w http.ResponseWriter, req *http.Request) {
		p.serveCall(w, req, req.Header.Get(HeaderRun))
	})
	mux.HandleFunc("GET /stats/{run}", p.serveStats)
	mux.HandleFunc("GET /count/{run}", func(w http.ResponseWriter, req *http.Request) {
		answer(w, http.StatusOK, p.Count(req.PathValue("run")))
	})
	mux.HandleFunc("GET /attempts/{run}", func(w http.ResponseWriter, req *http.Request) {
		answer(w, http.StatusOK, p.Attempts(req.PathValue("run")))
	})
	return mux
}

func callPath(run string) string { return "/v1/runs/" + url.PathEscape(run) + "/call" }

// callAnswer is the body of a 200.
type callAnswer struct {
	Run      string  `json:"run"`
	CallID   string  `json:"call_id,omitempty"`
	Attempt  int     `json:"attempt"` // the run's attempts so far, this one included
	ServedMS float64 `json:"served_ms"`
}

// errorAnswer is the body of every other status.
type errorAnswer struct {
	Error struct {
		Type    string `json:"type"`
		Reason  string `json:"reason,omitempty"` // of a refusal: "spacing", "in_flight" or "script"
		Message string `json:"message"`
	} `json:"error"`
}

func (p *Provider) serveCall(w http.ResponseWriter, req *http.Request, label string) {
	run, err := p.openRun(label)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, ErrTooManyRuns) {
			status = http.StatusInsufficientStorage
		}
		answerError(w, status, "invalid_request", "", err.Error())
		return
	}
	callID := req.Header.Get(HeaderCallID)
	attempt, turn, verdict := run.arrive(p.now, label, callID, req.Header.Get(HeaderLease))
	if verdict != accepted {
		if turn.RetryAfter != "" {
			w.Header().Set("Retry-After", turn.RetryAfter)
		}
		answerError(w, turn.Status, "overloaded", string(verdict), refusal(verdict))
		p.ended(attempt)
		return
	}

	status := http.StatusOK
	if !p.serve(req, turn) {
		status = statusAborted
	}
	// The place is freed before the answer is written: a caller that has its answer
	// must be able to rely on it, or its next call could find the place still taken.
	ended := run.finish(p.now, attempt, callID, status)
	if status == http.StatusOK {
		answer(w, http.StatusOK, callAnswer{
			Run:      label,
			CallID:   ended.CallID,
			Attempt:  ended.Seq,
			ServedMS: milliseconds(ended.Ended - ended.Arrived),
		})
	}
	p.ended(ended)
	if status == statusAborted {
		panic(http.ErrAbortHandler) // close the connection instead of answering 200
	}
}

// serve takes as long as a call takes and reports whether the caller was there to
// the end.
func (p *Provider) serve(req *http.Request, turn Turn) bool {
	if req.Body != nil {
		// net/http notices that a client left only once the body has been read.
		io.Copy(io.Discard, io.LimitReader(req.Body, maxBody))
	}
	if turn.Hang {
		select {
		case <-req.Context().Done():
		case <-p.done:
		}
		return false
	}
	if turn.ServeTime > 0 {
		t := time.NewTimer(turn.ServeTime)
		defer t.Stop()
		select {
		case <-t.C:
			return true
		case <-req.Context().Done():
			return false
		case <-p.done:
			return false
		}
	}
	return req.Context().Err() == nil
}

func (p *Provider) serveStats(w http.ResponseWriter, req *http.Request) {
	label := req.PathValue("run")
	run := p.findRun(label)
	if run == nil {
		answerError(w, http.StatusNotFound, "not_found", "", "no call of this run has arrived")
		return
	}
	answer(w, http.StatusOK, run.snapshot())
}

// now is the provider's monotonic time.
func (p *Provider) now() time.Duration { return time.Since(p.epoch) }

func (p *Provider) ended(a *Attempt) {
	if p.onEnd != nil {
		p.onEnd(a)
	}
}

func refusal(v verdict) string {
	switch v {
	case refusedSpacing:
		return "too soon after the last accepted request"
	case refusedInFlight:
		return "too many requests in flight"
	}
	return "slow down"
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // an error here means that the caller left: nothing to tell
}

func answerError(w http.ResponseWriter, status int, kind, reason, message string) {
	var body errorAnswer
	body.Error.Type, body.Error.Reason, body.Error.Message = kind, reason, message
	answer(w, status, body)
}
