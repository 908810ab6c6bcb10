package activities

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Transport is an http.RoundTripper that takes one lease for every request that
// goes over the wire, of the gate that the policy has for its URL, and keeps it
// until the response's body is read to its end or closed: a stream is in flight
// while it streams. A client library's retries and redirects each draw a lease.
// Requests without a gate go out as they are. Safe for concurrent use.
type Transport struct {
	// Base sends the requests. nil: http.DefaultTransport.
	Base http.RoundTripper
	// Gates to find a request's gate in. nil: those of the request's context.
	Gates *Gates
	// Cost estimates what a request takes. nil, or after a panic, which is
	// logged: one place, no units.
	Cost func(*http.Request) Cost
	// Usage finds out from an answer what its request really cost, which then
	// replaces the estimate; [LLMUsage] does for LLM providers. It may return
	// nil for an answer that it can't read. nil: estimates stand.
	Usage func(*http.Response) Usage
	// LeaseHeader, if set, is a request header that gets the lease's ID and
	// generation, such as "4711/1", or "local/4711/1" for one that the gate
	// doesn't know: for providers that you run yourself.
	LeaseHeader string

	// from lends its values to requests whose own context has none, such as
	// those of a library that makes contexts of its own.
	from context.Context
}

// HTTPClient returns a client whose requests take leases of the context's
// gates. Without a plugin or a policy it is a plain client. Give it to the
// provider's client library, with the library's own retries off.
func HTTPClient(ctx context.Context) *http.Client {
	return &http.Client{Transport: &Transport{from: ctx}}
}

// RoundTrip implements http.RoundTripper. The error may be an [Error].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := t.context(r.Context())
	gates := t.Gates
	if gates == nil {
		gates = GatesFrom(ctx)
	}
	if gates == nil {
		return t.base().RoundTrip(r)
	}
	name, _ := ctx.Value(nameKey).(string)
	g, err := gates.ForRequest(r, name)
	if err != nil {
		return nil, refuse(r, err)
	}
	if g == nil {
		return t.base().RoundTrip(r)
	}
	if h := heldFrom(ctx, g); h != nil {
		response, err := t.base().RoundTrip(t.marked(r, h.lease))
		h.learn(gates.feedbackOf(g, response, err))
		h.sawResponse(response)
		h.meter(response, t.meterOf(gates, g, response))
		return response, err
	}
	var cost Cost
	if t.Cost != nil {
		gates.shielded("Transport.Cost", func() { cost = t.Cost(r) })
	}
	l, err := acquire(ctx, g, cost, 0)
	if err != nil {
		return nil, refuse(r, err)
	}
	return t.send(t.marked(r, l), gates, g, l, innermost(ctx))
}

// send makes the attempt of a lease and ties the lease to the response's body.
// within is the lease of another gate that the caller runs on, if any.
func (t *Transport) send(r *http.Request, gates *Gates, g Gate, l Lease, within *held) (response *http.Response, err error) {
	f := Feedback{Outcome: Failed, Asked: -1}
	var read time.Time
	var m *meter
	kept := false
	ctx, done := whileHeld(inAttempt(r.Context(), l), g, l)
	if ctx != r.Context() {
		r = r.WithContext(ctx)
	}
	end := sync.OnceFunc(func() {
		if !read.IsZero() {
			f = f.after(time.Since(read))
		}
		if units, known := m.units(); known {
			f.Actual = units
		}
		gates.release(l, f)
		done()
	})
	defer func() {
		if !kept { // an error, a panic, or runtime.Goexit
			end()
		}
	}()
	response, err = t.base().RoundTrip(r)
	f, read = gates.feedbackOf(g, response, err), time.Now()
	within.sawResponse(response)
	if err != nil {
		if lost := leaseLost(ctx); lost != nil {
			err = lost
		}
		return response, err
	}
	m = t.meterOf(gates, g, response)
	kept = watch(response, m.seer(), end)
	return response, nil
}

// watch ties what its caller does with a response's body to two functions: see
// gets the bytes that are read, where it isn't nil, and ended is called at the
// end and at Close. false: there is no body.
func watch(response *http.Response, see func([]byte), ended func()) bool {
	if response == nil || response.Body == nil || response.Body == http.NoBody {
		return false
	}
	body := &watchedBody{response.Body, see, ended}
	response.Body = body
	if w, ok := body.ReadCloser.(io.Writer); ok { // a switched protocol
		response.Body = struct {
			*watchedBody
			io.Writer
		}{body, w}
	}
	return true
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// marked names the lease on the request, where that is wanted.
func (t *Transport) marked(r *http.Request, l Lease) *http.Request {
	fl, ok := l.(FeedbackLease)
	if t.LeaseHeader == "" || !ok {
		return r
	}
	info := fl.Info()
	r = r.Clone(r.Context()) // a RoundTripper must not change its request
	name := strconv.FormatUint(info.ID, 10) + "/" + strconv.FormatUint(uint64(info.Generation), 10)
	if info.Local {
		name = "local/" + name
	}
	r.Header.Set(t.LeaseHeader, name)
	return r
}

// refuse ends a request that was not sent, as a RoundTripper must.
func refuse(r *http.Request, err error) error {
	if r.Body != nil {
		_ = r.Body.Close() // the request's own error matters more
	}
	return err
}

// watchedBody is a body under watch.
type watchedBody struct {
	io.ReadCloser
	see   func([]byte)
	ended func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && b.see != nil {
		b.see(p[:n])
	}
	if err != nil {
		b.ended()
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.ended()
	return b.ReadCloser.Close()
}

// context is the request's, with the values of the one that the client was made
// for where it has none of its own.
func (t *Transport) context(ctx context.Context) context.Context {
	if t.from == nil || GatesFrom(ctx) != nil {
		return ctx
	}
	return lending{Context: ctx, from: t.from}
}

type lending struct {
	context.Context
	from context.Context
}

func (c lending) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.from.Value(key)
}
