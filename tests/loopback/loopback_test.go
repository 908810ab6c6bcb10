package loopback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// call posts one call straight to the handler, in the caller's goroutine.
func call(ctx context.Context, p *Provider, run, id string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(ctx, "POST", callPath(run), strings.NewReader("{}"))
	if id != "" {
		req.Header.Set(HeaderCallID, id)
	}
	req.Header.Set(HeaderLease, "lease-"+id)
	rec := httptest.NewRecorder()
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler {
			panic(r)
		}
	}()
	p.ServeHTTP(rec, req)
	return rec
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestSpacingHasNoToleranceAndNoBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{Interval: 100 * time.Millisecond, RetryAfter: "1"})
		time.Sleep(time.Second) // idle time earns nothing
		steps := []struct {
			after  time.Duration
			status int
		}{
			{0, 200},
			{0, 429},
			{100*time.Millisecond - 1, 429}, // a nanosecond early
			{1, 200},                        // measured from the accepted one: the refused ones moved nothing
			{99 * time.Millisecond, 429},
			{time.Millisecond, 200},
		}
		for i, s := range steps {
			time.Sleep(s.after)
			rec := call(t.Context(), p, "r", fmt.Sprint(i))
			want(t, fmt.Sprintf("step %d: status", i), rec.Code, s.status)
			if s.status == 429 {
				want(t, "Retry-After", rec.Header().Get("Retry-After"), "1")
				if !strings.Contains(rec.Body.String(), `"reason":"spacing"`) {
					t.Errorf("body of a 429: %s", rec.Body)
				}
			}
		}
		s := p.Stats("r")
		want(t, "completed", s.Completed, 3)
		want(t, "wire_attempts", s.WireAttempts, 6)
		want(t, "overloads", s.Overloads, 3)
		want(t, "min_gap_ms", s.MinGapMS, 0)
		want(t, "elapsed_s", s.ElapsedS, 0.2)
	})
}

func TestNoRetryAfterWhereNoneIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{Interval: time.Second})
		call(t.Context(), p, "r", "")
		rec := call(t.Context(), p, "r", "")
		want(t, "status", rec.Code, 429)
		want(t, "Retry-After", rec.Header().Get("Retry-After"), "")
	})
}

func TestInFlightIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{MaxInFlight: 4, ServeTime: 150 * time.Millisecond})
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { want(t, "status", call(t.Context(), p, "r", fmt.Sprint(i)).Code, 200) })
		}
		synctest.Wait() // all four are being served
		want(t, "in_flight", p.Stats("r").InFlight, 4)
		rec := call(t.Context(), p, "r", "fifth")
		want(t, "status", rec.Code, 429)
		if !strings.Contains(rec.Body.String(), `"reason":"in_flight"`) {
			t.Errorf("body of a 429: %s", rec.Body)
		}
		wg.Wait()
		want(t, "status once there is a place", call(t.Context(), p, "r", "fifth").Code, 200)
		s := p.Stats("r")
		want(t, "max_in_flight shows who tried", s.MaxInFlight, 5)
		want(t, "completed", s.Completed, 5)
		want(t, "in_flight", s.InFlight, 0)
		want(t, "elapsed_s", s.ElapsedS, 0.3)
	})
}

func TestGapsAreMeasuredBetweenArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{})
		call(t.Context(), p, "r", "")
		want(t, "min_gap_ms of one attempt", p.Stats("r").MinGapMS, 0)
		for i := range 200 { // gaps of 300, 299, … 101 ms
			time.Sleep(time.Duration(300-i) * time.Millisecond)
			call(t.Context(), p, "r", "")
		}
		s := p.Stats("r")
		want(t, "min_gap_ms", s.MinGapMS, 101)
		want(t, "p1_gap_ms", s.P1GapMS, 102) // the second of 200
		want(t, "completed without call IDs", s.Completed, 201)
		attempts := p.Attempts("r")
		want(t, "attempts", len(attempts), 201)
		for i := range attempts[1:] {
			if gap := attempts[i+1].Arrived - attempts[i].Arrived; gap != time.Duration(300-i)*time.Millisecond {
				t.Fatalf("gap %d: %v", i, gap)
			}
		}
	})
}

func TestACallerThatLeavesEndsItsCallAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{MaxInFlight: 1, ServeTime: time.Hour})
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); call(ctx, p, "r", "a") }()
		synctest.Wait()
		want(t, "in_flight", p.Stats("r").InFlight, 1)
		time.Sleep(time.Second)
		leave()
		<-done
		s := p.Stats("r")
		want(t, "aborted", s.Aborted, 1)
		want(t, "completed", s.Completed, 0)
		want(t, "in_flight", s.InFlight, 0)
		want(t, "elapsed_s", s.ElapsedS, 1)
		a := p.Attempts("r")[0]
		want(t, "Aborted", a.Aborted(), true)
		want(t, "Accepted", a.Accepted(), true)
	})
}

func TestCloseEndsWhatIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{ServeTime: time.Hour})
		done := make(chan struct{})
		go func() { defer close(done); call(t.Context(), p, "r", "a") }()
		synctest.Wait()
		p.Close()
		<-done
		want(t, "aborted", p.Stats("r").Aborted, 1)
		want(t, "second Close", p.Close(), nil)
		if err := p.Start(t.Context(), "127.0.0.1:0"); err == nil {
			t.Error("a closed provider started")
		}
	})
}

func TestACallIsCompletedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{})
		long := strings.Repeat("x", 10*MaxLabel)
		for _, id := range []string{"a", "b", "a", long + "1", long + "2"} {
			call(t.Context(), p, "r", id)
		}
		want(t, "completed", p.Stats("r").Completed, 4) // long IDs are told apart, though recorded cut
		want(t, "wire_attempts", p.Stats("r").WireAttempts, 5)
		a := p.Attempts("r")[0]
		want(t, "call ID", a.CallID, "a")
		want(t, "lease", a.Lease, "lease-a")
		want(t, "seq", a.Seq, 1)
		want(t, "recorded bytes", len(p.Attempts("r")[4].CallID), MaxLabel)
	})
}

func TestRunsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{Interval: time.Minute})
		if err := p.SetQuota("free", Quota{}); err != nil {
			t.Fatal(err)
		}
		for _, run := range []string{"a", "b/ c"} {
			want(t, "first of "+run, call(t.Context(), p, run, "").Code, 200)
			want(t, "second of "+run, call(t.Context(), p, run, "").Code, 429)
		}
		want(t, "own quota", call(t.Context(), p, "free", "").Code, 200)
		want(t, "own quota", call(t.Context(), p, "free", "").Code, 200)
		want(t, "unknown run", p.Stats("nobody"), Stats{})

		req := httptest.NewRequest("POST", "/v1/call", nil)
		req.Header.Set(HeaderRun, "a")
		rec := httptest.NewRecorder()
		p.ServeHTTP(rec, req)
		want(t, "run by header", rec.Code, 429)
	})
}

func TestAQuotaThatChangesKeepsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{})
		call(t.Context(), p, "r", "")
		time.Sleep(time.Second)
		if err := p.SetQuota("r", Quota{Interval: 2 * time.Second}); err != nil {
			t.Fatal(err)
		}
		want(t, "status", call(t.Context(), p, "r", "").Code, 429)
		time.Sleep(time.Second)
		want(t, "status", call(t.Context(), p, "r", "").Code, 200)
		want(t, "wire_attempts", p.Stats("r").WireAttempts, 3)
	})
}

func TestMalformedRequestsAreNoAttempts(t *testing.T) {
	p := New(Quota{})
	for range MaxRuns {
		p.SetQuota(fmt.Sprint("run-", len(p.runs)), Quota{})
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v1/call", 400},
		{"POST", callPath(strings.Repeat("x", MaxLabel+1)), 400},
		{"POST", callPath("one-too-many"), 507},
		{"GET", callPath("run-1"), 405},
		{"GET", "/stats/nobody", 404},
		{"GET", "/elsewhere", 404},
	} {
		rec := httptest.NewRecorder()
		p.ServeHTTP(rec, httptest.NewRequest(c.method, c.path, nil))
		want(t, c.method+" "+c.path, rec.Code, c.status)
	}
	if err := p.SetQuota("one-too-many", Quota{}); !errors.Is(err, ErrTooManyRuns) {
		t.Errorf("SetQuota: %v", err)
	}
	want(t, "attempts", p.Stats("run-1").WireAttempts, 0)
}

func TestMoreAttemptsThanAreKept(t *testing.T) {
	r := &run{served: make(map[callKey]struct{})}
	var now time.Duration
	clock := func() time.Duration { now += time.Microsecond; return now }
	r.attempts = make([]*Attempt, MaxAttempts)
	for i := range r.attempts {
		r.attempts[i] = &Attempt{Arrived: time.Duration(i)}
	}
	r.stats.attempts = MaxAttempts
	a, _, v := r.arrive(clock, "r", "a", "")
	want(t, "verdict", v, accepted)
	r.finish(clock, a, "a", 200)
	s := r.snapshot()
	want(t, "wire_attempts", s.WireAttempts, MaxAttempts+1)
	want(t, "dropped", s.Dropped, 1)
	want(t, "completed", s.Completed, 1)
	want(t, "in_flight", s.InFlight, 0)
}

func TestOverRealHTTP(t *testing.T) {
	p := New(Quota{ServeTime: time.Millisecond})
	ended := make(chan *Attempt, 10)
	p.onEnd = func(a *Attempt) { ended <- a }
	if err := p.Start(t.Context(), "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	// A served call, and its statistics.
	req, _ := http.NewRequestWithContext(t.Context(), "POST", p.CallURL("r"), strings.NewReader("{}"))
	req.Header.Set(HeaderCallID, "a")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	var answer callAnswer
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	want(t, "status", resp.StatusCode, 200)
	want(t, "run", answer.Run, "r")
	want(t, "call ID", answer.CallID, "a")
	<-ended

	resp, err = http.Get(p.URL() + "/stats/r")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	var stats Stats
	if err := json.Unmarshal(body, &stats); err != nil {
		t.Fatal(err)
	}
	want(t, "statistics over HTTP", stats, p.Stats("r"))
	for _, key := range []string{"completed", "wire_attempts", "overloads", "max_in_flight", "min_gap_ms", "p1_gap_ms", "elapsed_s"} {
		if !strings.Contains(string(body), `"`+key+`"`) {
			t.Errorf("no %s in %s", key, body)
		}
	}

	// A second provider on the same port.
	addr := strings.TrimPrefix(p.URL(), "http://")
	err = New(Quota{}).Start(t.Context(), addr)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("start on a taken port: %v", err)
	}
	want(t, "error", err.Error(), "port "+addr+" is taken; choose another with --port or 0 for a free one")
}

func TestAClientThatClosesItsConnection(t *testing.T) {
	p := New(Quota{ServeTime: time.Hour})
	ended := make(chan *Attempt, 1)
	p.onEnd = func(a *Attempt) { ended <- a }
	ctx, leave := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		leave() // the request has arrived: now its client goes away
		p.ServeHTTP(w, req)
	}))
	defer server.Close()
	req, _ := http.NewRequestWithContext(ctx, "POST", server.URL+callPath("r"), strings.NewReader("{}"))
	if resp, err := server.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Error("an abandoned call was answered")
	}
	a := <-ended
	want(t, "aborted", a.Aborted(), true)
	want(t, "in_flight", p.Stats("r").InFlight, 0)
}

func TestTheContextOfStartEndsIt(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	p := New(Quota{})
	if err := p.Start(ctx, "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(ctx, "127.0.0.1:0"); err == nil {
		t.Error("it started twice")
	}
	end()
	<-p.done
}

// A script decides by number, within the quota; what it refuses takes no place and
// moves no spacing.
func TestScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Quota{MaxInFlight: 1, Interval: 10 * time.Millisecond})
		if err := p.SetScript("r", func(attempt int) Turn {
			switch attempt {
			case 1:
				return Turn{Status: 503, RetryAfter: "0.2"}
			case 2:
				return Turn{ServeTime: time.Second}
			case 4:
				return Turn{Hang: true}
			}
			return Turn{}
		}); err != nil {
			t.Fatal(err)
		}
		refused := call(t.Context(), p, "r", "a")
		want(t, "status", refused.Code, 503)
		want(t, "Retry-After", refused.Header().Get("Retry-After"), "0.2")
		if !strings.Contains(refused.Body.String(), `"reason":"script"`) {
			t.Errorf("body of a refusal: %s", refused.Body)
		}
		var slow sync.WaitGroup
		slow.Go(func() { want(t, "status", call(t.Context(), p, "r", "a").Code, 200) })
		synctest.Wait()
		time.Sleep(10 * time.Millisecond)
		want(t, "the quota comes first", call(t.Context(), p, "r", "b").Code, 429)
		slow.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		call(ctx, p, "r", "c") // hangs until its caller leaves
		want(t, "served after the hang", call(t.Context(), p, "r", "d").Code, 200)
		attempts := p.Attempts("r")
		want(t, "attempts", len(attempts), 5)
		want(t, "accepted", attempts[0].Accepted(), false)
		want(t, "recorded Retry-After", attempts[0].RetryAfter, "0.2")
		want(t, "aborted", attempts[3].Aborted(), true)
		want(t, "hung for", attempts[3].Ended-attempts[3].Arrived, time.Minute)
		want(t, "count", p.Count("r"), Count{WireAttempts: 5, Completed: 2, Overloads: 1})
		want(t, "count of an unknown run", p.Count("x"), Count{})
	})
}
