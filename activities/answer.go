package activities

import (
	"net/http"
	"reflect"
)

// answer is what a provider answered, as far as an error still knows.
type answer struct {
	status   int
	header   http.Header
	response *http.Response // nil: only status and header are known
	err      error          // that carries it; nil for one that Transport saw
}

// same reports whether both are one answer: copies of a response share its
// header.
func (a answer) same(b answer) bool {
	if a.header != nil || b.header != nil {
		return a.header != nil && b.header != nil && reflect.ValueOf(a.header).Pointer() == reflect.ValueOf(b.header).Pointer()
	}
	return a.err != nil && b.err != nil && reflect.TypeOf(a.err).Comparable() && reflect.TypeOf(b.err).Comparable() && a.err == b.err
}

// Bounds of the search in an error.
const (
	maxUnwraps = 8  // from the outermost error to the deepest that is looked at
	maxLooks   = 64 // errors looked at in all: those of a tree fan out
)

// answersIn finds the provider's answer in an error: in the first error of the
// chain that carries one, at most 8 unwraps deep. What stands behind it is not
// looked at, so a 400 that wraps a 429 is a 400. Each branch of a joined error
// has an answer of its own. Cycles and panics of the errors' methods do no harm.
//
// An error carries an answer by its shape, without its library's types:
//
//   - an exported field, or the method Response or HTTPResponse, of type
//     *http.Response (openai-go, anthropic-sdk-go, go-github, azcore); or a field
//     of that name that embeds one (aws-sdk-go-v2);
//   - an integer field or method StatusCode, HTTPStatusCode, HTTPStatus or
//     HTTPCode, and the header from a field or method Header, Headers,
//     HTTPHeader, ResponseHeader or ResponseHeaders, where there is one;
//   - an integer field Code or Status, but only beside such a header (googleapi).
//
// No other method is called but Unwrap.
func answersIn(err error) []answer {
	var s search
	s.look(err, 0)
	return s.found
}

type search struct {
	found []answer
	looks int
}

func (s *search) look(err error, unwraps int) {
	if err == nil || unwraps > maxUnwraps || s.looks == maxLooks {
		return
	}
	s.looks++
	a, ok := answerOf(err)
	if ok && a.header != nil {
		s.found = append(s.found, a)
		return
	}
	before := len(s.found)
	for _, inner := range unwrapped(err) {
		s.look(inner, unwraps+1)
	}
	if !ok {
		return
	}
	// A status alone: an error inside may know the header of the same answer.
	for _, inner := range s.found[before:] {
		if inner.status == a.status && a.header == nil {
			a = inner
		}
	}
	s.found = append(s.found[:before], a)
}

// hasEnd reports whether the tree of an error is finite, as far as a reasonable
// size goes.
func hasEnd(err error) bool {
	const reasonable = 1000
	looks := 0
	var walk func(error, int) bool
	walk = func(err error, depth int) bool {
		if looks++; looks > reasonable || depth > reasonable/10 {
			return false
		}
		for _, inner := range unwrapped(err) {
			if inner != nil && !walk(inner, depth+1) {
				return false
			}
		}
		return true
	}
	return err == nil || walk(err, 0)
}

// unwrapped are the errors that an error wraps.
func unwrapped(err error) (inner []error) {
	defer func() {
		if recover() != nil {
			inner = nil
		}
	}()
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	}
	return nil
}

// answerOf is the answer that an error itself carries.
func answerOf(err error) (answer, bool) {
	var s shape
	s.shielded(func() { s.fields(structOf(reflect.ValueOf(err)), 0) })
	s.shielded(func() { s.methods(err) })
	if s.response != nil {
		return answer{status: s.response.StatusCode, header: s.response.Header, response: s.response, err: err}, true
	}
	if s.status == 0 && s.header != nil {
		s.status = s.code
	}
	return answer{status: s.status, header: s.header, err: err}, s.status != 0
}

// shape is what is known of an error; what is found first stays.
type shape struct {
	response *http.Response
	status   int
	code     int // a number whose name may mean anything
	header   http.Header
}

// shielded runs a look that an error's own code, or a strange type, may break.
func (s *shape) shielded(look func()) {
	defer func() { _ = recover() }() // then this error says no more than it has
	look()
}

var (
	responseType = reflect.TypeFor[*http.Response]()
	headerType   = reflect.TypeFor[http.Header]()
)

// maxEmbedded is how deep structs that are embedded in an error are looked into.
const maxEmbedded = 4

// fields takes what the exported fields of a struct say, embedded ones last.
func (s *shape) fields(v reflect.Value, embedded int) {
	if v.Kind() != reflect.Struct || embedded > maxEmbedded {
		return
	}
	t := v.Type()
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			s.field(f, v.Field(i))
		}
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && f.Type != responseType {
			s.fields(structOf(v.Field(i)), embedded+1)
		}
	}
}

func (s *shape) field(f reflect.StructField, v reflect.Value) {
	switch {
	case f.Type == responseType:
		s.takeResponse(v.Interface().(*http.Response))
		return
	case f.Type.ConvertibleTo(headerType) && headerName(f.Name):
		s.takeHeader(v.Convert(headerType).Interface().(http.Header))
		return
	}
	switch f.Name {
	case "StatusCode", "HTTPStatusCode", "HttpStatusCode", "HTTPStatus", "HTTPCode":
		s.takeStatus(&s.status, v)
	case "Code", "Status":
		s.takeStatus(&s.code, v)
	case "Response", "RawResponse", "HTTPResponse":
		inner := structOf(v)
		if inner.Kind() != reflect.Struct {
			return
		}
		for i := range inner.NumField() {
			if e := inner.Type().Field(i); e.Anonymous && e.Type == responseType {
				s.takeResponse(inner.Field(i).Interface().(*http.Response))
			}
		}
	}
}

func headerName(name string) bool {
	switch name {
	case "Header", "Headers", "HTTPHeader", "ResponseHeader", "ResponseHeaders":
		return true
	}
	return false
}

// methods takes what the few methods say that are known to have no effect.
func (s *shape) methods(err error) {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return
	}
	if e, ok := err.(interface{ Response() *http.Response }); ok {
		s.takeResponse(e.Response())
	}
	if e, ok := err.(interface{ HTTPResponse() *http.Response }); ok {
		s.takeResponse(e.HTTPResponse())
	}
	if e, ok := err.(interface{ StatusCode() int }); ok {
		s.takeStatus(&s.status, reflect.ValueOf(e.StatusCode()))
	}
	if e, ok := err.(interface{ HTTPStatusCode() int }); ok {
		s.takeStatus(&s.status, reflect.ValueOf(e.HTTPStatusCode()))
	}
	if e, ok := err.(interface{ HTTPCode() int }); ok {
		s.takeStatus(&s.status, reflect.ValueOf(e.HTTPCode()))
	}
	if e, ok := err.(interface{ Header() http.Header }); ok {
		s.takeHeader(e.Header())
	}
	if e, ok := err.(interface{ Headers() http.Header }); ok {
		s.takeHeader(e.Headers())
	}
	if e, ok := err.(interface{ ResponseHeader() http.Header }); ok {
		s.takeHeader(e.ResponseHeader())
	}
}

func (s *shape) takeResponse(r *http.Response) {
	if s.response == nil && r != nil && validStatus(int64(r.StatusCode)) {
		s.response = r
	}
}

func (s *shape) takeHeader(h http.Header) {
	if s.header == nil {
		s.header = h
	}
}

func (s *shape) takeStatus(to *int, v reflect.Value) {
	if *to == 0 && v.CanInt() && validStatus(v.Int()) {
		*to = int(v.Int())
	}
}

// validStatus: a status has three digits (RFC 9110, section 15). Numbers beyond
// are codes of something else.
func validStatus(n int64) bool { return n >= 100 && n <= 999 }

// structOf follows pointers, a few: a type may be a pointer to itself.
func structOf(v reflect.Value) reflect.Value {
	for range maxEmbedded {
		if v.Kind() != reflect.Pointer {
			break
		}
		v = v.Elem() // of a nil pointer: invalid, which is no struct
	}
	return v
}
