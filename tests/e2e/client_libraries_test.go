package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"sluice/activities"
	"sluice/admission"
	"sluice/policy"
	"sluice/tests/clients"
	"sluice/worker"
)

// assistant has activities that ask by way of real client libraries.
type assistant struct {
	openai    openai.Client
	anthropic anthropic.Client
}

func newAssistant(url string) *assistant {
	return &assistant{
		openai.NewClient(openaioption.WithBaseURL(url+"/v1/"), openaioption.WithAPIKey("sk-test"), openaioption.WithMaxRetries(0),
			openaioption.WithHTTPClient(&http.Client{Transport: &activities.Transport{
				Cost:  func(*http.Request) activities.Cost { return activities.Cost{Units: map[string]int64{"tokens": 200}} },
				Usage: activities.LLMUsage,
			}})),
		anthropic.NewClient(anthropicoption.WithBaseURL(url), anthropicoption.WithAPIKey("sk-ant-test"), anthropicoption.WithMaxRetries(0),
			anthropicoption.WithHTTPClient(&http.Client{})),
	}
}

// AskOpenAI takes a lease for each request.
func (a *assistant) AskOpenAI(ctx context.Context) (string, error) {
	stream := a.openai.Responses.NewStreaming(ctx, responses.ResponseNewParams{
		Model: "gpt-4o", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What does Sluice do?")},
	})
	var text strings.Builder
	for stream.Next() {
		if event := stream.Current(); event.Type == "response.output_text.delta" {
			text.WriteString(event.Delta)
		}
	}
	return text.String(), stream.Err()
}

// AskAnthropic knows nothing of Sluice; the policy gates it by name.
func (a *assistant) AskAnthropic(ctx context.Context) (string, error) {
	m, err := a.anthropic.Messages.New(ctx, anthropic.MessageNewParams{Model: "claude-opus-4", MaxTokens: 100, Messages: []anthropic.MessageParam{
		anthropic.NewUserMessage(anthropic.NewTextBlock("What does Sluice do?")),
	}})
	if err != nil {
		return "", err
	}
	return m.Content[0].Text, nil
}

// askText runs an activity that returns a text.
func askText(ctx workflow.Context, name string, attempts int32) (text string, err error) {
	err = workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 30 * time.Second, RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Millisecond, MaximumAttempts: attempts},
	}), name).Get(ctx, &text)
	return text, err
}

// TestClientLibraries: current client libraries in activities under durable
// gates. An overload reaches the gate, the retry waits for its end, and the
// library's error keeps its type on the way to the workflow.
func TestClientLibraries(t *testing.T) {
	ts := server(t)
	for _, c := range []struct {
		activity string
		gate     policy.Gate
		status   int
	}{
		{"AskOpenAI", policy.Gate{Provider: "openai", Preset: "openai",
			Budgets: []admission.Budget{{Unit: "tokens", Rate: admission.Rate{Limit: 1000, Per: 1000 * time.Hour, Burst: 1000}}}}, 429},
		{"AskAnthropic", policy.Gate{Provider: "anthropic", Preset: "anthropic", Activities: []string{"AskAnthropic"}}, 529},
	} {
		t.Run(c.activity, func(t *testing.T) {
			p := clients.NewProvider()
			t.Cleanup(p.Close)
			c.gate.Endpoint = p.URL
			pol := policyOf(t, c.gate)
			w := start(t, ts, worker.Options{Policy: pol}, sdkworker.Options{}, func(r sdkworker.Registry) {
				r.RegisterWorkflow(askText)
				r.RegisterActivity(newAssistant(p.URL))
			})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			ask := func(attempts int32) (text string, err error) {
				run, err := w.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: taskQueue}, askText, c.activity, attempts)
				require.NoError(t, err)
				err = run.Get(ctx, &text)
				return text, err
			}

			p.Refuse(1, c.status, http.Header{"retry-after-ms": {"300"}})
			text, err := ask(5)
			require.NoError(t, err)
			assert.Equal(t, clients.Text, text)
			st := status(t, w.client, pol.Gates()[0])
			assert.Equal(t, 2, p.Sends())
			assert.Equal(t, uint64(2), st.Counters.Admissions-st.Counters.HandBacks)
			assert.Equal(t, uint64(1), st.Counters.Overloads)
			require.NotNil(t, st.Cooldown)
			assert.Equal(t, int32(c.status), st.Cooldown.Status)
			assert.Equal(t, "retry-after-ms", st.Cooldown.Source)
			assert.Equal(t, 300*time.Millisecond, time.Duration(st.Cooldown.Asked))

			p.Refuse(1, c.status, http.Header{"retry-after-ms": {"1"}})
			_, err = ask(1)
			var failed *temporal.ApplicationError
			require.ErrorAs(t, err, &failed)
			assert.Equal(t, "Error", failed.Type(), "of the library")
			assert.False(t, failed.NonRetryable())
			require.Eventually(t, func() bool {
				st := status(t, w.client, pol.Gates()[0])
				return st.Counters.Overloads == 2 && st.Reserved+st.Started+st.Queued == 0
			}, 10*time.Second, 20*time.Millisecond)

			if len(c.gate.Budgets) == 0 {
				return
			}
			// 1,000 tokens, less two refused requests as estimated and one answer.
			gate, err := w.plugin.Gates().Gate(pol.Gates()[0].ID())
			require.NoError(t, err)
			left := int64(1000 - 2*200 - clients.InputTokens - clients.OutputTokens)
			l, err := gate.Acquire(ctx, activities.Request{Cost: activities.Cost{Units: map[string]int64{"tokens": left}}})
			require.NoError(t, err)
			l.Release()
			_, err = gate.Acquire(ctx, activities.Request{QueueTimeout: time.Minute, Cost: activities.Cost{Units: map[string]int64{"tokens": 1}}})
			require.ErrorIs(t, err, activities.ErrTooLate)
		})
	}
}
