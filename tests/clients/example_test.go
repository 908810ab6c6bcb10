package clients_test

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sluice/activities"
)

// The functions below are shown by docs/client-libraries.md as they stand here.

func NewOpenAI() openai.Client {
	return openai.NewClient(
		openaioption.WithHTTPClient(&http.Client{Transport: &activities.Transport{
			Cost:  estimate,
			Usage: activities.LLMUsage,
		}}),
		openaioption.WithMaxRetries(0), // retrying is the activity's business
	)
}

func NewAnthropic() anthropic.Client {
	return anthropic.NewClient(
		anthropicoption.WithHTTPClient(&http.Client{Transport: &activities.Transport{
			Cost:  estimate,
			Usage: activities.LLMUsage,
		}}),
		anthropicoption.WithMaxRetries(0),
	)
}

func estimate(r *http.Request) activities.Cost {
	const answer = 1000 // as far as max_tokens lets it go
	return activities.Cost{Units: map[string]int64{activities.UnitTokens: r.ContentLength/4 + answer}}
}

type Assistant struct {
	OpenAI    openai.Client
	Anthropic anthropic.Client
}

func (a *Assistant) Summarize(ctx context.Context, text string) (string, error) {
	completion, err := a.OpenAI.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model:    "gpt-4o",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Summarize: " + text)},
	})
	if err != nil {
		return "", err
	}
	return completion.Choices[0].Message.Content, nil
}

func (a *Assistant) Stream(ctx context.Context, text string) (string, error) {
	stream := a.OpenAI.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{
		Model:         "gpt-4o",
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Summarize: " + text)},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	})
	defer func() { _ = stream.Close() }() // the lease ends with the stream
	var summary strings.Builder
	for stream.Next() {
		for _, choice := range stream.Current().Choices {
			summary.WriteString(choice.Delta.Content)
		}
	}
	return summary.String(), stream.Err()
}

func (a *Assistant) Translate(ctx context.Context, text string) (string, error) {
	var message *anthropic.Message
	err := activities.Do(ctx, "anthropic@api.anthropic.com", activities.Cost{}, func(ctx context.Context) (err error) {
		message, err = a.Anthropic.Messages.New(ctx, anthropic.MessageNewParams{
			Model: "claude-opus-4", MaxTokens: 1000,
			Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Translate: " + text))},
		})
		return err
	})
	if err != nil {
		return "", err
	}
	return message.Content[0].Text, nil
}

func convert(ctx context.Context, pages int64, run func(context.Context) (used int64, err error)) error {
	cost := activities.Cost{Units: map[string]int64{"pages": pages}}
	return activities.Do(ctx, "convert", cost, func(ctx context.Context) error {
		used, err := run(ctx)
		activities.ReportUsage(ctx, map[string]int64{"pages": used})
		return err
	})
}

// TestTheDocumentShowsWhatCompiles: every piece of Go in the document stands here.
func TestTheDocumentShowsWhatCompiles(t *testing.T) {
	_ = convert
	document, err := os.ReadFile("../../docs/client-libraries.md")
	require.NoError(t, err)
	code, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(document), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		assert.Contains(t, string(code), block[1])
	}
}
