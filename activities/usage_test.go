package activities

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/admission"
	"sluice/policy"
	"sluice/workflows/contract"
)

// An answer of each kind that LLMUsage reads, with what it used.
const (
	chatBody = `{"id":"c","choices":[{"message":{"content":"a \"usage\": {\"total_tokens\": 9}","usage":{"total_tokens":9}}}],
"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":3}}}`
	responsesBody = `{"usage": {"input_tokens":36,"output_tokens":87,"total_tokens":123}, "object":"response"}`
	messageBody   = `{"type":"message","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":5,"cache_creation_input_tokens":100,"cache_read_input_tokens":7000,"output_tokens":50}}`
	embeddingBody = `{"data":[{"embedding":[0.1,{"usage":{"total_tokens":1}}]}],"usage":{"prompt_tokens":8,"total_tokens":8}}`
	chatStream    = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\ndata: [DONE]\n\n"
	responseEvent = "event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\r\n\r\nevent: response.completed\r\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[],\"usage\":{\"input_tokens\":36,\"output_tokens\":87,\"total_tokens\":123}}}\r\n\r\n"
	messageStart  = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_creation_input_tokens\":10,\"output_tokens\":1}}}\n\n"
	messageDelta  = ": a comment\n\nevent: message_delta\ndata:{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\ndata:\"usage\":{\"output_tokens\":15}}\n\n"
)

func tokens(input, output, total int64) map[string]int64 {
	return map[string]int64{UnitInputTokens: input, UnitOutputTokens: output, UnitTokens: total}
}

var llmBodies = []struct {
	name, kind, body string
	want             map[string]int64
}{
	{"chat completion", "application/json; charset=utf-8", chatBody, tokens(19, 10, 29)},
	{"response", "application/json", responsesBody, tokens(36, 87, 123)},
	{"message", "application/json", messageBody, tokens(105, 50, 155)},
	{"embedding", "application/problem+json", embeddingBody, map[string]int64{UnitInputTokens: 8, UnitTokens: 8}},
	{"chat completion, streamed", "text/event-stream", chatStream, tokens(19, 10, 29)},
	{"response, streamed", "text/event-stream; charset=utf-8", responseEvent, tokens(36, 87, 123)},
	{"message, streamed", "text/event-stream", messageStart + messageDelta, tokens(35, 15, 50)},
	{"message, left before its end", "text/event-stream", messageStart, nil},
	{"chat completion, not asked for usage", "text/event-stream", "data: {\"choices\":[]}\n\ndata: [DONE]\n\n", nil},
	{"an event cut off", "text/event-stream", "data: {\"a\":{\"b\":[\n\n" + chatStream, tokens(19, 10, 29)},
	{"lines that end in a return", "text/event-stream", strings.ReplaceAll(chatStream, "\n", "\r"), tokens(19, 10, 29)},
	{"other fields", "text/event-stream", "database: {\"usage\":{\"total_tokens\":1}}\n\ndat\n\n", nil},
	{"a large body", "application/json", `{"text":"` + strings.Repeat(`\"usage\":{`, 100_000) + `","usage":{"total_tokens":7}}`, map[string]int64{UnitTokens: 7}},
	{"a usage that is too large", "application/json", `{"usage":{"total_tokens":7,"x":"` + strings.Repeat("x", maxUsage) + `"}}`, nil},
	{"negative", "application/json", `{"usage":{"total_tokens":-7}}`, nil},
	{"absurd", "application/json", `{"usage":{"total_tokens":99999999999999999}}`, nil},
	{"a fraction", "application/json", `{"usage":{"total_tokens":7.5}}`, nil},
	{"empty", "application/json", `{"usage":{}}`, nil},
	{"a list", "application/json", `[{"usage":{"total_tokens":7}}]`, nil},
	{"a key with an escape", "application/json", `{"usag\u0065":{"total_tokens":7}}`, nil},
	{"a value that looks like the key", "application/json", `{"a":"usage","b":{"total_tokens":7},"c":["usage",{"total_tokens":7}]}`, nil},
	{"no JSON", "application/json", `]}}usage":{"total_tokens":7`, nil},
	{"cut off", "application/json", chatBody[:len(chatBody)-40], nil},
}

// usageOf reads a body in pieces of the given size, which may be 0 for all.
func usageOf(kind, body string, piece int) map[string]int64 {
	u := LLMUsage(&http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}})
	for len(body) > 0 {
		n := len(body)
		if piece > 0 {
			n = min(piece, n)
		}
		_, _ = io.WriteString(u, body[:n])
		body = body[n:]
	}
	return u.Units()
}

func TestLLMUsage(t *testing.T) {
	for _, c := range llmBodies {
		t.Run(c.name, func(t *testing.T) {
			for _, piece := range []int{0, 1, 2, 3, 7, 64, 4096} {
				assert.Equal(t, c.want, usageOf(c.kind, c.body, piece), "in pieces of %d", piece)
			}
		})
	}
	for _, r := range []*http.Response{
		{StatusCode: 429, Header: http.Header{"Content-Type": {"application/json"}}},
		{StatusCode: 200, Header: http.Header{"Content-Type": {"text/html"}}},
		{StatusCode: 200, Header: http.Header{}},
		{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"br"}}},
	} {
		assert.Nil(t, LLMUsage(r), "%v", r)
	}
}

// FuzzLLMUsage: whatever comes, in whatever pieces, the counts are sane and the
// memory is bounded; and of what is JSON, they are those that it says at its top.
func FuzzLLMUsage(f *testing.F) {
	for _, c := range llmBodies {
		if len(c.body) < 10_000 {
			f.Add(c.kind == "text/event-stream", c.body, 3)
		}
	}
	f.Fuzz(func(t *testing.T, stream bool, body string, piece int) {
		kind := "application/json"
		if stream {
			kind = "text/event-stream"
		}
		whole := usageOf(kind, body, 0)
		require.Equal(t, whole, usageOf(kind, body, max(piece, 1)))
		for unit, n := range whole {
			require.GreaterOrEqual(t, n, int64(0), unit)
		}
		var plain struct {
			Usage *struct {
				Total *int64 `json:"total_tokens"`
			} `json:"usage"`
		}
		simple := strings.Count(body, `"usage"`) == 1 && strings.Count(body, "total_tokens") == 1 && strings.Count(body, "tokens") == 1 && !strings.Contains(body, `\`)
		if !stream && simple && json.Unmarshal([]byte(body), &plain) == nil && plain.Usage != nil && plain.Usage.Total != nil && *plain.Usage.Total >= 0 && *plain.Usage.Total <= absurd {
			require.Equal(t, map[string]int64{UnitTokens: *plain.Usage.Total}, whole)
		}
	})
}

// counting is a Usage by hand.
type counting struct {
	bytes.Buffer
	units func(seen string) map[string]int64
}

func (c *counting) Units() map[string]int64 { return c.units(c.String()) }

// recording is a link that remembers what the gate was told of leases.
type recording struct {
	link
	releases []*contract.Release
}

func (l *recording) exchange(ctx context.Context, x *contract.Exchange) (*contract.Answer, error) {
	l.releases = append(l.releases, x.Release...)
	return l.link.exchange(ctx, x)
}

func (l *recording) flush(ctx context.Context, x *contract.Exchange) error {
	l.releases = append(l.releases, x.Release...)
	return l.link.flush(ctx, x)
}

// TestActualCost: what a lease tells its gate that it used.
func TestActualCost(t *testing.T) {
	jsonHeader := http.Header{"Content-Type": {"application/json"}}
	estimate := Cost{Units: map[string]int64{"tokens": 100}}
	seen := func(units map[string]int64) func(*http.Response) Usage {
		return func(*http.Response) Usage { return &counting{units: func(string) map[string]int64 { return units }} }
	}
	send := func(ctx context.Context, tr *Transport) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://used.test", nil)
		if err != nil {
			return err
		}
		response, err := tr.RoundTrip(r)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return errors.Join(err, response.Body.Close())
	}
	chat := always(200, jsonHeader, chatBody)
	for _, c := range []struct {
		name string
		run  func(ctx context.Context) error
		want map[string]int64
		log  string
	}{
		{"Transport: nobody asks", func(ctx context.Context) error { return send(ctx, &Transport{Base: chat}) }, nil, ""},
		{"Transport: LLMUsage", func(ctx context.Context) error { return send(ctx, &Transport{Base: chat, Usage: LLMUsage}) }, map[string]int64{"tokens": 29}, ""},
		{"Transport: an answer that it can't read", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: always(429, jsonHeader, chatBody), Usage: LLMUsage})
		}, nil, ""},
		{"Transport: left unread", func(ctx context.Context) error {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://used.test", nil)
			response, err := (&Transport{Base: chat, Usage: LLMUsage}).RoundTrip(r)
			return errors.Join(err, response.Body.Close())
		}, nil, ""},
		{"Transport: sees what is read", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: func(*http.Response) Usage {
				return &counting{units: func(seen string) map[string]int64 { return map[string]int64{"tokens": int64(len(seen))} }}
			}})
		}, map[string]int64{"tokens": int64(len(chatBody))}, ""},
		{"Transport: of a header, without a body", func(ctx context.Context) error {
			base := answering(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 204, Header: http.Header{"X-Cost": {"3"}}, Body: http.NoBody}, nil
			})
			return send(ctx, &Transport{Base: base, Usage: func(r *http.Response) Usage { return seen(map[string]int64{"tokens": int64(len(r.Header))})(r) }})
		}, map[string]int64{"tokens": 1}, ""},
		{"Transport: zero", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: seen(map[string]int64{"tokens": 0})})
		}, map[string]int64{"tokens": 0}, ""},
		{"Transport: a unit without a budget", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: seen(map[string]int64{"token": 5, "tokens": 6})})
		}, map[string]int64{"tokens": 6}, "unit=token\n"},
		{"Transport: negative", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: seen(map[string]int64{"tokens": -6})})
		}, nil, "negative usage"},
		{"Transport: Usage panics", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: func(*http.Response) Usage { panic("Usage") }})
		}, nil, "in=Transport.Usage panic=string"},
		{"Transport: Write panics", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: func(*http.Response) Usage { return &struct{ Usage }{} }})
		}, nil, "in=Usage.Write"},
		{"Transport: Units panics", func(ctx context.Context) error {
			return send(ctx, &Transport{Base: chat, Usage: func(*http.Response) Usage { return &counting{} }})
		}, nil, "in=Usage.Units"},

		{"Do: reports add up", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error {
				ReportUsage(ctx, map[string]int64{"tokens": 20})
				ReportUsage(ctx, map[string]int64{"tokens": 3})
				return nil
			})
		}, map[string]int64{"tokens": 23}, ""},
		{"Do: reported and failed", func(ctx context.Context) error {
			_ = Do(ctx, "one", estimate, func(ctx context.Context) error {
				ReportUsage(ctx, map[string]int64{"tokens": 20})
				return errors.New("no luck")
			})
			return nil
		}, map[string]int64{"tokens": 20}, ""},
		{"Do: a unit without a budget, a negative one", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error {
				ReportUsage(ctx, map[string]int64{"tokens": -1})
				ReportUsage(ctx, map[string]int64{"pages": 1})
				return nil
			})
		}, nil, "unit=pages"},
		{"Do: nothing reported", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error { return send(ctx, &Transport{Base: chat}) })
		}, nil, ""},
		{"Do: two sends", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error {
				tr := &Transport{Base: chat, Usage: LLMUsage}
				return errors.Join(send(ctx, tr), send(ctx, tr))
			})
		}, map[string]int64{"tokens": 58}, ""},
		{"Do: two sends, one of unknown cost", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error {
				return errors.Join(send(ctx, &Transport{Base: chat, Usage: LLMUsage}), send(ctx, &Transport{Base: chat}))
			})
		}, nil, ""},
		{"Do: one of unknown cost, the other above the estimate", func(ctx context.Context) error {
			return Do(ctx, "one", Cost{Units: map[string]int64{"tokens": 28}}, func(ctx context.Context) error {
				return errors.Join(send(ctx, &Transport{Base: chat, Usage: LLMUsage}), send(ctx, &Transport{Base: chat}))
			})
		}, map[string]int64{"tokens": 29}, ""},
		{"Do: the code knows all", func(ctx context.Context) error {
			return Do(ctx, "one", estimate, func(ctx context.Context) error {
				ReportUsage(ctx, map[string]int64{"tokens": 20})
				return send(ctx, &Transport{Base: chat})
			})
		}, map[string]int64{"tokens": 20}, ""},
		{"Do: a body that outlives the lease", func(ctx context.Context) error {
			var body io.ReadCloser
			err := Do(ctx, "one", estimate, func(ctx context.Context) error {
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://used.test", nil)
				response, err := (&Transport{Base: chat, Usage: LLMUsage}).RoundTrip(r)
				body = response.Body
				return err
			})
			_, _ = io.Copy(io.Discard, body)
			return errors.Join(err, body.Close())
		}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := policy.Gate{Provider: "test", Name: "one", Endpoint: "http://used.test", MaxInFlight: 1,
				Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1000, Per: time.Second, Burst: 1000}}}}
			p, err := policy.New(g)
			require.NoError(t, err)
			var log bytes.Buffer
			l := &recording{}
			gates := newGates(p, GatesOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(g policy.Gate) (link, error) {
				local, err := openLocal(g)
				l.link = local
				return l, err
			})
			require.NoError(t, c.run(WithGates(t.Context(), gates)))
			require.NoError(t, gates.Close(context.Background()))
			l.link.(*localLink).close()
			require.Len(t, l.releases, 1)
			var actual map[string]int64
			for _, used := range l.releases[0].Actual {
				if actual == nil {
					actual = map[string]int64{}
				}
				actual[used.Unit] = used.N
			}
			assert.Equal(t, c.want, actual)
			if c.log == "" {
				assert.Empty(t, log.String())
			} else {
				assert.Contains(t, log.String(), c.log)
			}
		})
	}
	ReportUsage(context.Background(), map[string]int64{"tokens": 1}) // nothing to report to
}

// TestBudgetsAreSettled: what was used too little comes back at once, what was
// used too much is owed.
func TestBudgetsAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gates := local(t, policy.Gate{Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 100, Per: time.Second, Burst: 100}}}})
		ctx := WithGates(t.Context(), gates)
		use := func(estimate, used int64) time.Duration {
			began := time.Now()
			var waited time.Duration
			err := Do(ctx, "one", Cost{Units: map[string]int64{"tokens": estimate}}, func(ctx context.Context) error {
				waited = time.Since(began)
				ReportUsage(ctx, map[string]int64{"tokens": used})
				return nil
			})
			require.NoError(t, err)
			synctest.Wait()
			return waited
		}
		assert.Zero(t, use(100, 10))
		assert.Zero(t, use(90, 90), "90 came back")
		assert.Equal(t, 10*time.Millisecond, use(1, 101).Truncate(time.Millisecond), "the bucket is empty")
		assert.Equal(t, 1010*time.Millisecond, use(1, 1).Truncate(time.Millisecond), "a hundred more were used than estimated")
		closeAll(t, gates)
	})
}

// TestLessonsOfSuccess: where the policy learns, a limit that an answer shows to
// be exhausted goes to the gate, and a lower limit than the policy's is reported
// once.
func TestLessonsOfSuccess(t *testing.T) {
	for _, learn := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			p, err := policy.New(policy.Gate{Provider: "openai", Preset: "openai", Name: "one", Endpoint: "http://lessons.test/v1", Learn: learn,
				Requests: admission.Rate{Limit: 500, Per: time.Minute, Burst: 1}})
			require.NoError(t, err)
			l := &recording{}
			gates := newGates(p, GatesOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(g policy.Gate) (link, error) {
				local, err := openLocal(g)
				l.link = local
				return l, err
			})
			ctx := WithGates(t.Context(), gates)
			header := http.Header{
				"X-Ratelimit-Limit-Requests": {"300"}, "X-Ratelimit-Remaining-Requests": {"0"}, "X-Ratelimit-Reset-Requests": {"7s"},
			}
			for range 2 {
				require.NoError(t, get(ctx, always(200, header, ""), "http://lessons.test/v1/chat/completions"))
				time.Sleep(time.Minute) // the bubble's
			}
			err = Do(ctx, "one", Cost{}, func(ctx context.Context) error {
				require.NoError(t, get(ctx, always(200, header, ""), "http://lessons.test/v1/chat/completions"))
				return errors.New("of the code, later")
			})
			require.Error(t, err)
			lower := gates.LowerLimits()
			require.NoError(t, gates.Close(context.Background()))
			l.link.(*localLink).close()
			require.Len(t, l.releases, 3)
			for _, r := range l.releases {
				if learn {
					assert.Equal(t, contract.Outcome_OUTCOME_SUCCESS, r.Outcome)
					assert.Equal(t, int64(7*time.Second), r.GetAskedCooldown())
					assert.Equal(t, "x-ratelimit-reset-requests", r.HintSource)
				} else {
					assert.Nil(t, r.AskedCooldown)
				}
			}
			if !learn {
				assert.Empty(t, lower)
				assert.Empty(t, log.String())
				return
			}
			shown := lower[p.Gates()[0].ID()]
			require.Len(t, shown, 1)
			assert.Equal(t, int64(300), shown[0].Limit)
			assert.Equal(t, 1, strings.Count(log.String(), "x-ratelimit-limit-requests allows 300 requests per 1m, the policy 500"), log.String())
		})
	}
}
