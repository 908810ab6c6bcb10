package activities

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"strings"
)

// The units that LLMUsage finds.
const (
	UnitTokens       = "tokens"        // of input and output together
	UnitInputTokens  = "input_tokens"  // of the prompt
	UnitOutputTokens = "output_tokens" // of the answer
)

// LLMUsage is a [Transport]'s Usage for providers that speak as OpenAI (chat
// completions, responses, embeddings) or Anthropic (messages) do. It finds the
// tokens that the answer says it has used, in a JSON body and in a stream of
// server-sent events, and names them as UnitTokens, UnitInputTokens and
// UnitOutputTokens; which of them count is the policy's choice of budgets.
//
// Tokens that were read from Anthropic's prompt cache don't count, those that
// were written into it do (https://docs.claude.com/en/api/rate-limits). A stream
// of chat completions says what it used only where the request asks for it
// (stream_options.include_usage).
//
// nil, or nothing found (an error, another format, compressed bytes, a stream that
// was left before its end): the estimate stands. Whatever the body's size, no
// more than 16 KiB of it are kept.
func LLMUsage(r *http.Response) Usage {
	if r.StatusCode >= http.StatusMultipleChoices || r.Header.Get("Content-Encoding") != "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil
	}
	u := &llmUsage{}
	u.objects.found = u.take
	switch {
	case kind == "text/event-stream":
		u.events = &eventData{to: &u.objects}
	case kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return nil
	}
	return u
}

type llmUsage struct {
	objects usageObjects
	events  *eventData // nil: the body is JSON
	counts  tokenCounts
	final   bool // the counts are the last ones
}

// tokenCounts is the usage object of either provider.
type tokenCounts struct {
	Prompt     *int64 `json:"prompt_tokens"`     // OpenAI, chat completions and embeddings
	Completion *int64 `json:"completion_tokens"` // likewise
	Input      *int64 `json:"input_tokens"`
	Output     *int64 `json:"output_tokens"`
	Total      *int64 `json:"total_tokens"`                // OpenAI
	CacheWrite *int64 `json:"cache_creation_input_tokens"` // Anthropic: beside input_tokens
}

func (u *llmUsage) Write(p []byte) (int, error) {
	if u.events != nil {
		u.events.write(p)
	} else {
		u.objects.write(p)
	}
	return len(p), nil
}

// take takes in a usage object. Later ones of a stream have the newer counts;
// Anthropic's first one has only those of the input for good.
func (u *llmUsage) take(object []byte, final bool) {
	var news tokenCounts
	if json.Unmarshal(object, &news) != nil {
		return
	}
	c := &u.counts // what this object doesn't name stays
	c.Prompt, c.Completion = either(news.Prompt, c.Prompt), either(news.Completion, c.Completion)
	c.Input, c.Output = either(news.Input, c.Input), either(news.Output, c.Output)
	c.Total, c.CacheWrite = either(news.Total, c.Total), either(news.CacheWrite, c.CacheWrite)
	u.final = u.final || final
}

// absurd bounds a believable count of tokens.
const absurd = 1 << 40

func (u *llmUsage) Units() map[string]int64 {
	c := &u.counts
	for _, n := range []*int64{c.Prompt, c.Completion, c.Input, c.Output, c.Total, c.CacheWrite} {
		if n != nil && (*n < 0 || *n > absurd) {
			return nil
		}
	}
	input, output := either(c.Input, c.Prompt), either(c.Output, c.Completion)
	if !u.final || input == nil && output == nil && c.Total == nil {
		return nil
	}
	units, sum := map[string]int64{}, int64(0)
	if input != nil {
		units[UnitInputTokens] = *input
		if c.CacheWrite != nil {
			units[UnitInputTokens] += *c.CacheWrite
		}
		sum += units[UnitInputTokens]
	}
	if output != nil {
		units[UnitOutputTokens] = *output
		sum += *output
	}
	units[UnitTokens] = sum
	if c.Total != nil {
		units[UnitTokens] = *c.Total
	}
	return units
}

func either(a, b *int64) *int64 {
	if a != nil {
		return a
	}
	return b
}

// eventData takes the data out of a stream of server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html), whatever the
// pieces that it comes in.
type eventData struct {
	to    *usageObjects
	line  []byte // its beginning, as far as that is needed
	ended bool   // the last byte was a carriage return
	data  bool   // the line is data
	skip  bool   // the line is of no interest
}

var dataField = []byte("data:")

func (e *eventData) write(p []byte) {
	for len(p) > 0 {
		if e.data || e.skip {
			end := bytes.IndexAny(p, "\r\n")
			if end < 0 {
				end = len(p)
			}
			if e.data {
				e.to.write(p[:end])
			}
			if p = p[end:]; len(p) == 0 {
				return
			}
		}
		c := p[0]
		p = p[1:]
		switch {
		case c == '\n' && e.ended:
			e.ended = false // the second half of an end of line
		case c == '\n' || c == '\r':
			if len(e.line) == 0 {
				e.to.reset() // an empty line ends an event
			}
			e.line, e.data, e.skip, e.ended = e.line[:0], false, false, c == '\r'
		default:
			e.ended = false
			e.line = append(e.line, c)
			e.data = bytes.Equal(e.line, dataField)
			e.skip = !bytes.HasPrefix(dataField, e.line)
		}
	}
}

// usageObjects finds the usage objects of a JSON text as its bytes come by: the
// values of "usage" at the top, and in a "message" or a "response" that stands
// there. It keeps nothing else, and needs no more than one object's memory.
type usageObjects struct {
	found func(object []byte, final bool)

	depth    int
	inString bool
	escaped  bool
	text     []byte // of the string under way, if it may be a key of interest
	key      keyKind
	within   keyKind // what the object at depth 2 is the value of
	taking   int     // depth of the usage object that is being taken; 0: none
	object   []byte
}

type keyKind uint8

const (
	otherKey keyKind = iota
	usageKey
	messageKey  // usage in it comes with the beginning of a stream
	responseKey // and in it, with the end
)

const (
	longestKey = len("response")
	maxUsage   = 16 << 10
)

func (o *usageObjects) reset() {
	*o = usageObjects{found: o.found, text: o.text[:0], object: o.object[:0]}
}

func (o *usageObjects) write(p []byte) {
	for len(p) > 0 {
		if o.inString && !o.escaped && o.taking == 0 && len(o.text) > longestKey {
			// In a long string, where most bytes are.
			next := bytes.IndexAny(p, `"\`)
			if next < 0 {
				return
			}
			p = p[next:]
		}
		o.one(p[0])
		p = p[1:]
	}
}

func (o *usageObjects) one(c byte) {
	if o.taking > 0 && len(o.object) <= maxUsage {
		o.object = append(o.object, c)
	}
	if o.inString {
		switch {
		case o.escaped:
			o.escaped = false
		case c == '\\':
			o.escaped = true
		case c == '"':
			o.inString = false
			return
		}
		if len(o.text) <= longestKey {
			o.text = append(o.text, c)
		}
		return
	}
	switch c {
	case '"':
		o.inString, o.text = true, o.text[:0]
	case ':':
		o.key = kindOf(o.text)
	case ',':
		o.key = otherKey
	case '{', '[':
		o.open(c)
	case '}', ']':
		o.close()
	}
}

func kindOf(key []byte) keyKind {
	switch string(key) {
	case "usage":
		return usageKey
	case "message":
		return messageKey
	case "response":
		return responseKey
	}
	return otherKey
}

func (o *usageObjects) open(c byte) {
	key := o.key
	o.key, o.text = otherKey, o.text[:0]
	o.depth++
	switch {
	case o.taking > 0:
	case c == '{' && key == usageKey && (o.depth == 2 || o.depth == 3 && o.within > usageKey):
		o.taking, o.object = o.depth, append(o.object[:0], c)
	case o.depth == 2:
		o.within = otherKey
		if c == '{' {
			o.within = key
		}
	}
}

func (o *usageObjects) close() {
	if o.depth == 0 {
		return // not JSON
	}
	if o.taking == o.depth {
		if len(o.object) <= maxUsage {
			o.found(o.object, o.depth == 2 || o.within != messageKey)
		}
		o.taking, o.object = 0, o.object[:0]
	}
	o.depth--
	o.key, o.text = otherKey, o.text[:0]
}
