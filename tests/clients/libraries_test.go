package clients

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

// call is one way to ask a provider through its library.
type call struct {
	name     string
	library  string // openai or anthropic, as the policy's presets are named
	streamed bool
	tokens   int64 // that count by the answer
	// run asks over an HTTP client, with so many retries of the library's own,
	// and returns the text of the answer. first, where it isn't nil, is called
	// after a stream's first event.
	run func(ctx context.Context, url string, over *http.Client, retries int, first func()) (string, error)
}

var calls = []call{
	{"openai chat completion", "openai", false, InputTokens + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, _ func()) (string, error) {
		c, err := openaiClient(url, over, retries).Chat.Completions.New(ctx, chatParams())
		if err != nil {
			return "", err
		}
		return c.Choices[0].Message.Content, nil
	}},
	{"openai chat completion, streamed", "openai", true, InputTokens + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, first func()) (string, error) {
		params := chatParams()
		params.StreamOptions.IncludeUsage = openai.Bool(true)
		stream := openaiClient(url, over, retries).Chat.Completions.NewStreaming(ctx, params)
		var text strings.Builder
		for stream.Next() {
			once(&first)
			for _, choice := range stream.Current().Choices {
				text.WriteString(choice.Delta.Content)
			}
		}
		return text.String(), errors.Join(stream.Err(), stream.Close())
	}},
	{"openai response", "openai", false, InputTokens + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, _ func()) (string, error) {
		r, err := openaiClient(url, over, retries).Responses.New(ctx, responseParams())
		if err != nil {
			return "", err
		}
		return r.OutputText(), nil
	}},
	{"openai response, streamed", "openai", true, InputTokens + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, first func()) (string, error) {
		stream := openaiClient(url, over, retries).Responses.NewStreaming(ctx, responseParams())
		var text strings.Builder
		for stream.Next() {
			once(&first)
			if event := stream.Current(); event.Type == "response.output_text.delta" {
				text.WriteString(event.Delta)
			}
		}
		return text.String(), errors.Join(stream.Err(), stream.Close())
	}},
	{"anthropic message", "anthropic", false, InputTokens + CacheWrites + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, _ func()) (string, error) {
		m, err := anthropicClient(url, over, retries).Messages.New(ctx, messageParams())
		if err != nil {
			return "", err
		}
		return m.Content[0].Text, nil
	}},
	{"anthropic message, streamed", "anthropic", true, InputTokens + CacheWrites + OutputTokens, func(ctx context.Context, url string, over *http.Client, retries int, first func()) (string, error) {
		stream := anthropicClient(url, over, retries).Messages.NewStreaming(ctx, messageParams())
		var m anthropic.Message
		var failed error
		for stream.Next() {
			once(&first)
			failed = errors.Join(failed, m.Accumulate(stream.Current()))
		}
		if failed = errors.Join(failed, stream.Err(), stream.Close()); failed != nil || len(m.Content) == 0 {
			return "", failed
		}
		return m.Content[0].Text, nil
	}},
}

// once calls a function the first time.
func once(f *func()) {
	if *f != nil {
		(*f)()
		*f = nil
	}
}

func openaiClient(url string, over *http.Client, retries int) *openai.Client {
	c := openai.NewClient(openaioption.WithBaseURL(url+"/v1/"), openaioption.WithAPIKey("sk-test"),
		openaioption.WithHTTPClient(over), openaioption.WithMaxRetries(retries))
	return &c
}

func anthropicClient(url string, over *http.Client, retries int) *anthropic.Client {
	c := anthropic.NewClient(anthropicoption.WithBaseURL(url), anthropicoption.WithAPIKey("sk-ant-test"),
		anthropicoption.WithHTTPClient(over), anthropicoption.WithMaxRetries(retries))
	return &c
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "gpt-4o", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What does Sluice do?")}}
}

func responseParams() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: "gpt-4o", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What does Sluice do?")}}
}

func messageParams() anthropic.MessageNewParams {
	return anthropic.MessageNewParams{Model: "claude-opus-4", MaxTokens: 100, Messages: []anthropic.MessageParam{
		anthropic.NewUserMessage(anthropic.NewTextBlock("What does Sluice do?")),
	}}
}

// statusOf is the status of a library's own error; 0 for any other.
func statusOf(err error) int {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e.StatusCode
	}
	if e := (*anthropic.Error)(nil); errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}
