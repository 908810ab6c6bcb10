package activities

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"

	"sluice/policy"
)

// read reads what an answer says to a gate. peek returns the beginning of the
// answer's body, where that can be had; it is asked only where the gate's
// provider says there when to come again and no header does.
func read(g policy.Gate, a answer, peek func(limit int) []byte) Feedback {
	now := time.Now()
	f := Feedback{Outcome: Success, Status: a.status, Asked: -1}
	if a.status >= 400 {
		f.Outcome = Failed
	}
	hint := g.ReadHintBody(a.status, a.header, nil, now)
	if limit := g.BodyHintLimit(); hint.Overload && !hint.HasHint && limit > 0 {
		if body := peek(limit); len(body) > 0 {
			hint = g.ReadHintBody(a.status, a.header, body, now)
		}
	}
	if hint.Overload {
		f.Outcome, f.Source = Overload, hint.Source
		if hint.HasHint {
			f.Asked = hint.Asked
		}
		return f
	}
	lesson := g.ReadLesson(a.status, a.header, now)
	if lesson.Asked > 0 {
		f.Asked, f.Source = lesson.Asked, lesson.Source
	}
	f.Lower = lesson.Lower
	return f
}

// feedbackOf reads what came of a request. Whatever goes wrong in that is kept
// from the call: then the outcome is all that is known.
func (g *Gates) feedbackOf(gate Gate, response *http.Response, err error) Feedback {
	f := Feedback{Outcome: Failed, Asked: -1}
	if err != nil || response == nil {
		return f
	}
	g.shielded("feedback", func() {
		f = read(gate.Policy(), answer{status: response.StatusCode, header: response.Header, response: response},
			func(limit int) []byte { return peekBody(response, limit) })
	})
	return f
}

// outranks reports whether f is the one of two that an attempt's lease tells
// its gate: an overload before anything else, then a success that shows an
// exhausted limit, then a failure. Of two alike the one that asks for longer.
func (f Feedback) outranks(o Feedback) bool {
	if a, b := f.rank(), o.rank(); a != b {
		return a > b
	}
	return f.Asked > o.Asked
}

func (f Feedback) rank() int {
	switch {
	case f.Outcome == Overload:
		return 3
	case f.Asked > 0:
		return 2
	case f.Outcome == Failed:
		return 1
	}
	return 0
}

// after is the feedback when it is told d after it was read: so much of the
// delay is over. It counts in tenths of a second, for a delay must not end
// early, and leaves a millisecond, for "now" would mean something else.
func (f Feedback) after(d time.Duration) Feedback {
	if f.Asked > 0 {
		f.Asked = max(f.Asked-d.Truncate(100*time.Millisecond), min(f.Asked, time.Millisecond))
	}
	return f
}

// peekBody reads the beginning of a response's body and puts it back in front
// of the rest.
func peekBody(r *http.Response, limit int) []byte {
	if r.Body == nil || r.Body == http.NoBody || r.Header.Get("Content-Encoding") != "" {
		return nil
	}
	body := r.Body
	head, err := io.ReadAll(io.LimitReader(body, int64(limit)))
	var rest io.Reader = body
	if err != nil {
		rest = failing{err}
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), body}
	return head
}

// failing is a reader that has come to an error.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// heldBody is the beginning of a body that somebody keeps in memory, as client
// libraries do with that of an error. Nothing is taken from it; nil where that
// can't be had.
func heldBody(r *http.Response, limit int) []byte {
	if r == nil || r.Body == nil || r.Header.Get("Content-Encoding") != "" {
		return nil
	}
	var body any = r.Body
	if inner := embeddedReader(body); inner != nil {
		body = inner
	}
	switch b := body.(type) {
	case *bytes.Buffer:
		return bytes.Clone(b.Bytes()[:min(limit, b.Len())])
	case *bytes.Reader:
		head := make([]byte, min(limit, b.Len()))
		n, _ := b.ReadAt(head, b.Size()-int64(b.Len()))
		return head[:n]
	case *strings.Reader:
		head := make([]byte, min(limit, b.Len()))
		n, _ := b.ReadAt(head, b.Size()-int64(b.Len()))
		return head[:n]
	case io.ReadSeeker:
		at, err := b.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil
		}
		head, _ := io.ReadAll(io.LimitReader(b, int64(limit))) // what came before an error counts
		if _, err = b.Seek(at, io.SeekStart); err != nil {
			return nil
		}
		return head
	}
	return nil
}

// embeddedReader is the reader in what io.NopCloser makes; nil for other bodies.
func embeddedReader(body any) io.Reader {
	v := reflect.ValueOf(body)
	if v.Kind() != reflect.Struct || v.NumField() != 1 {
		return nil
	}
	f := v.Type().Field(0)
	if !f.Anonymous || !f.IsExported() {
		return nil
	}
	r, _ := v.Field(0).Interface().(io.Reader)
	return r
}
