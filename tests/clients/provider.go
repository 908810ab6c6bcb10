package clients

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Text is what the provider answers every question with.
const Text = "Sluice opens."

// The tokens that the provider says were used.
const (
	InputTokens  = 19
	OutputTokens = 10
	CacheWrites  = 7 // Anthropic, beside the input
)

// Provider answers chat completions, responses and messages as OpenAI and
// Anthropic do (https://platform.openai.com/docs/api-reference,
// https://docs.claude.com/en/api/messages), whole or as a stream of events. Safe
// for concurrent use.
type Provider struct {
	*httptest.Server

	mu     sync.Mutex
	sends  int
	refuse int
	status int
	header http.Header
	middle chan struct{} // streams wait here after their first event
}

// NewProvider starts a provider. Close it when done.
func NewProvider() *Provider {
	p := &Provider{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", p.serve(chatCompletion, openaiError))
	mux.HandleFunc("POST /v1/responses", p.serve(response, openaiError))
	mux.HandleFunc("POST /v1/messages", p.serve(message, anthropicError))
	p.Server = httptest.NewServer(mux)
	return p
}

// Refuse answers the next n requests with an error of the given status, with
// these headers.
func (p *Provider) Refuse(n, status int, header http.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.status, p.header = n, status, header
}

// Sends is how many requests have arrived.
func (p *Provider) Sends() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sends
}

// Hold stops streams after their first event, until resume is called.
func (p *Provider) Hold() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	middle := make(chan struct{})
	p.middle = middle
	return func() { close(middle) }
}

// question is what of a request matters here.
type question struct {
	Stream  bool `json:"stream"`
	Options struct {
		Usage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// answer is a JSON body, or the events of a stream.
type answer func(q question) (body string, events []string)

func (p *Provider) serve(answer answer, refusal func(status int) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.sends++
		refused := p.refuse > 0
		if refused {
			p.refuse--
		}
		status, header, middle := p.status, p.header, p.middle
		p.mu.Unlock()
		if refused {
			for name, values := range header {
				w.Header()[http.CanonicalHeaderKey(name)] = values
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, refusal(status))
			return
		}
		var q question
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, events := answer(q)
		if !q.Stream {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for i, event := range events {
			_, _ = io.WriteString(w, event+"\n\n")
			w.(http.Flusher).Flush()
			if i == 0 && middle != nil {
				select {
				case <-middle:
				case <-r.Context().Done(): // the caller left
					return
				}
			}
		}
	}
}

func openaiError(int) string {
	return `{"error":{"message":"Rate limit reached","type":"requests","param":null,"code":"rate_limit_exceeded"}}`
}

func anthropicError(status int) string {
	kind := "rate_limit_error"
	if status == 529 {
		kind = "overloaded_error"
	}
	return `{"type":"error","error":{"type":"` + kind + `","message":"Slow down"},"request_id":"req_1"}`
}

func chatCompletion(q question) (string, []string) {
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}`,
		InputTokens, OutputTokens, InputTokens+OutputTokens)
	body := `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"` + Text + `","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":` + usage + `}`
	chunk := func(choices, usage string) string {
		return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o","choices":[` + choices + `],"usage":` + usage + `}`
	}
	var events []string
	for _, word := range strings.SplitAfter(Text, " ") {
		events = append(events, chunk(`{"index":0,"delta":{"role":"assistant","content":"`+word+`"},"finish_reason":null}`, "null"))
	}
	events = append(events, chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`, "null"))
	if q.Options.Usage {
		events = append(events, chunk("", usage))
	}
	return body, append(events, "data: [DONE]")
}

func response(question) (string, []string) {
	usage := fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
		InputTokens, OutputTokens, InputTokens+OutputTokens)
	object := func(status, output, usage string) string {
		return `{"id":"resp_1","object":"response","created_at":1700000000,"status":"` + status + `","model":"gpt-4o","output":[` + output + `],"usage":` + usage + `}`
	}
	text := `{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"` + Text + `","annotations":[]}]}`
	event := func(kind, rest string) string {
		return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"," + rest + "}"
	}
	events := []string{event("response.created", `"sequence_number":0,"response":`+object("in_progress", "", "null"))}
	for _, word := range strings.SplitAfter(Text, " ") {
		events = append(events, event("response.output_text.delta", `"sequence_number":1,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"`+word+`"`))
	}
	done := object("completed", text, usage)
	return done, append(events, event("response.completed", `"sequence_number":2,"response":`+done))
}

func message(question) (string, []string) {
	usage := func(output int) string {
		return fmt.Sprintf(`{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":5000,"output_tokens":%d}`, InputTokens, CacheWrites, output)
	}
	object := func(content, reason, usage string) string {
		return `{"id":"msg_1","type":"message","role":"assistant","model":"claude-opus-4","content":[` + content + `],"stop_reason":` + reason + `,"stop_sequence":null,"usage":` + usage + `}`
	}
	event := func(kind, rest string) string {
		return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + rest + "}"
	}
	events := []string{
		event("message_start", `,"message":`+object("", "null", usage(1))),
		event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`),
		event("ping", ""),
	}
	for _, word := range strings.SplitAfter(Text, " ") {
		events = append(events, event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"`+word+`"}`))
	}
	events = append(events,
		event("content_block_stop", `,"index":0`),
		event("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}`, OutputTokens)),
		event("message_stop", ""),
	)
	return object(`{"type":"text","text":"`+Text+`"}`, `"end_turn"`, usage(OutputTokens)), events
}
