package activities

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The shapes of client libraries' errors.

type openaiLike struct {
	Code       string
	StatusCode int
	Request    *http.Request
	Response   *http.Response
}

func (*openaiLike) Error() string { return "refused" }

type githubLike struct {
	Response *http.Response
	Message  string
}

func (githubLike) Error() string { return "refused" }

type googleLike struct {
	Code   int
	Header http.Header
}

func (*googleLike) Error() string { return "refused" }

type azureLike struct {
	ErrorCode   string
	StatusCode  int
	RawResponse *http.Response
}

func (*azureLike) Error() string { return "refused" }

type smithyResponse struct{ *http.Response }

type smithyLike struct {
	Response *smithyResponse
	Err      error
}

func (*smithyLike) Error() string   { return "refused" }
func (e *smithyLike) Unwrap() error { return e.Err }

type awsLike struct {
	*smithyLike
	RequestID string
}

type statusOnly struct{ HTTPStatusCode int }

func (statusOnly) Error() string { return "refused" }

type byMethods struct {
	status int
	header http.Header
	inner  error
}

func (byMethods) Error() string         { return "refused" }
func (e byMethods) StatusCode() int     { return e.status }
func (e byMethods) Header() http.Header { return e.header }
func (e byMethods) Unwrap() error       { return e.inner }

type responseMethod struct{ r *http.Response }

func (responseMethod) Error() string              { return "refused" }
func (e responseMethod) Response() *http.Response { return e.r }

type grpcLike struct{ Code int }

func (grpcLike) Error() string { return "unavailable" }

type numberOfSomething struct {
	Status int64
	Header map[string]string
}

func (numberOfSomething) Error() string { return "no answer" }

type requestHeader struct {
	Code          int
	RequestHeader http.Header
}

func (requestHeader) Error() string { return "no answer" }

// many is a value that can't be compared, as an error of several.
type many []error

func (many) Error() string     { return "several" }
func (m many) Unwrap() []error { return m }

type ring struct{ next error }

func (*ring) Error() string   { return "round and round" }
func (r *ring) Unwrap() error { return r.next }

type forest struct{}

func (forest) Error() string     { return "ever more" }
func (f forest) Unwrap() []error { return []error{f, f, f, nil} }

type breaking struct{ inner error }

func (breaking) Error() string     { return "broken" }
func (breaking) StatusCode() int   { panic("StatusCode") }
func (b breaking) Unwrap() []error { return []error{b.inner} }

type breakingUnwrap struct{}

func (breakingUnwrap) Error() string { return "broken" }
func (breakingUnwrap) Unwrap() error { panic("Unwrap") }

type selfPointer *selfPointer

type withSelfPointer struct {
	Response selfPointer
	Status   uint8
}

func (withSelfPointer) Error() string { return "strange" }

type embedsResponse struct {
	*http.Response
	error
}

func responseOf(status int) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {"2"}}}
}

func wrapped(err error, times int) error {
	for range times {
		err = fmt.Errorf("wrapped: %w", err)
	}
	return err
}

func TestAnswersInErrors(t *testing.T) {
	header := http.Header{"Retry-After": {"2"}}
	var strange selfPointer
	strange = &strange
	circle := &ring{}
	circle.next = &ring{circle}
	for _, c := range []struct {
		name   string
		err    error
		status []int
		header bool // each answer has one
	}{
		{"nil", nil, nil, false},
		{"plain", errors.New("429 too many requests"), nil, false},
		{"openai, anthropic", &openaiLike{Code: "rate_limit", StatusCode: 429, Response: responseOf(429)}, []int{429}, true},
		{"the response decides", &openaiLike{StatusCode: 400, Response: responseOf(429)}, []int{429}, true},
		{"no response came", &openaiLike{StatusCode: 429}, []int{429}, false},
		{"a nil pointer in an error", (*openaiLike)(nil), nil, false},
		{"github", githubLike{Response: responseOf(403)}, []int{403}, true},
		{"google", &googleLike{503, header}, []int{503}, true},
		{"google, without a header", &googleLike{503, nil}, nil, false},
		{"azure", &azureLike{StatusCode: 429, RawResponse: responseOf(429)}, []int{429}, true},
		{"smithy", &smithyLike{Response: &smithyResponse{responseOf(429)}}, []int{429}, true},
		{"aws", &awsLike{&smithyLike{Response: &smithyResponse{responseOf(503)}}, "id"}, []int{503}, true},
		{"aws, empty", &awsLike{}, nil, false},
		{"smithy, empty", &smithyLike{Response: &smithyResponse{}, Err: githubLike{Response: responseOf(429)}}, []int{429}, true},
		{"status alone", statusOnly{529}, []int{529}, false},
		{"methods", byMethods{status: 429, header: header}, []int{429}, true},
		{"a method that returns the response", responseMethod{responseOf(429)}, []int{429}, true},
		{"an embedded response", embedsResponse{responseOf(429), errors.New("refused")}, []int{429}, true},
		{"a code of something else", grpcLike{429}, nil, false},
		{"an own kind of header", numberOfSomething{429, map[string]string{"Retry-After": "2"}}, nil, false},
		{"the request's header", requestHeader{429, header}, nil, false},
		{"no status at all", statusOnly{14}, nil, false},
		{"a huge number", statusOnly{1 << 40}, nil, false},

		{"8 unwraps", wrapped(&openaiLike{Response: responseOf(429)}, 8), []int{429}, true},
		{"9 unwraps", wrapped(&openaiLike{Response: responseOf(429)}, 9), nil, false},
		{"a 400 that wraps a 429", byMethods{status: 400, header: header, inner: githubLike{Response: responseOf(429)}}, []int{400}, true},
		{"a 400 without a header that wraps a 429", byMethods{status: 400, inner: githubLike{Response: responseOf(429)}}, []int{400}, false},
		{"a status whose header stands further in", byMethods{status: 429, inner: wrapped(githubLike{Response: responseOf(429)}, 2)}, []int{429}, true},
		{"branches", errors.Join(githubLike{Response: responseOf(400)}, fmt.Errorf("%w, %w", errors.New("x"), githubLike{Response: responseOf(429)})), []int{400, 429}, true},
		{"incomparable", many{many{}, statusOnly{429}}, []int{429}, false},

		{"a cycle", circle, nil, false},
		{"a cycle with an answer", &ring{byMethods{status: 503, inner: circle}}, []int{503}, false},
		{"a tree without end", forest{}, nil, false},
		{"a method that panics", breaking{statusOnly{429}}, []int{429}, false},
		{"Unwrap that panics", breakingUnwrap{}, nil, false},
		{"a pointer to itself", withSelfPointer{Response: strange, Status: 200}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var status []int
			for _, a := range answersIn(c.err) {
				status = append(status, a.status)
				assert.Equal(t, c.header, a.header != nil)
			}
			assert.Equal(t, c.status, status)
		})
	}
}

// TestOneAnswer: copies of a response are one answer; two with equal headers are
// two.
func TestOneAnswer(t *testing.T) {
	r, other := responseOf(429), responseOf(429)
	copied := *r
	one := answersIn(&openaiLike{Response: r})[0]
	assert.True(t, one.same(answersIn(githubLike{Response: &copied})[0]))
	assert.True(t, one.same(answersIn(&googleLike{429, r.Header})[0]))
	assert.False(t, one.same(answersIn(githubLike{Response: other})[0]))
	bare := answersIn(statusOnly{429})[0]
	assert.True(t, bare.same(bare))
	assert.False(t, bare.same(one))
	list := answersIn(errors.Join(statusOnly{429}))[0]
	assert.True(t, list.same(bare))
	incomparable := answer{status: 429, err: many{}}
	assert.False(t, incomparable.same(incomparable))
}

// FuzzAnswersIn builds chains and trees of errors: the search ends, panics
// nowhere, and every answer has a status of three digits.
func FuzzAnswersIn(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 429)
	f.Add([]byte{8, 8, 8, 0, 4, 2}, 503)
	f.Add([]byte{6, 3, 6, 3}, -1)
	f.Fuzz(func(t *testing.T, plan []byte, status int) {
		last := &ring{}
		var err error = last
		for _, step := range plan {
			switch step % 11 {
			case 0:
				err = fmt.Errorf("wrapped: %w", err)
			case 1:
				err = errors.Join(err, err)
			case 2:
				err = byMethods{status: status, inner: err}
			case 3:
				err = breaking{err}
			case 4:
				err = errors.Join(err, statusOnly{status})
			case 5:
				err = &smithyLike{Response: &smithyResponse{responseOf(status)}, Err: err}
			case 6:
				err = &ring{err}
			case 7:
				last.next = err // a cycle
			case 8:
				err = many{err, nil, err}
			case 9:
				err = errors.Join(forest{}, err)
			case 10:
				err = &googleLike{Code: status}
			}
		}
		found := answersIn(err)
		require.LessOrEqual(t, len(found), maxLooks)
		for _, a := range found {
			require.True(t, validStatus(int64(a.status)), "%d", a.status)
		}
	})
}
