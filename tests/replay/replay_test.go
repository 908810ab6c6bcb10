// Package replay replays recorded histories of the admission workflow, one at
// least of every version of its rules, and compares its answers and what it
// handed to the next run with what the history says. A change of its decisions
// must fail here before it fails in a running gate.
//
// Record a new one with
//
//	go test ./tests/e2e -run TestContinueAsNewUnderLoad/mixed -record ../replay/testdata/rules-N-mixed.json
package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/interceptor"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"sluice/admission"
	"sluice/worker"
	"sluice/workflows"
)

// histories lists the recorded files; a test without any would prove nothing.
func histories(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

func load(t *testing.T, file string) *historypb.History {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	h := &historypb.History{}
	require.NoError(t, protojson.Unmarshal(data, h))
	return h
}

// replayer replays the admission workflow, with the plugin in place as in a
// user's own replay tests.
func replayer(t *testing.T, interceptors ...interceptor.WorkerInterceptor) sdkworker.WorkflowReplayer {
	t.Helper()
	plugin, err := worker.NewPlugin(worker.Options{})
	require.NoError(t, err)
	r, err := sdkworker.NewWorkflowReplayerWithOptions(sdkworker.WorkflowReplayerOptions{Plugins: []sdkworker.Plugin{plugin}, Interceptors: interceptors})
	require.NoError(t, err)
	r.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
	return r
}

// replay replays a history and returns what the run said.
func replay(t *testing.T, h *historypb.History) said {
	t.Helper()
	l := &listener{heard: said{answers: map[string]string{}}}
	require.NoError(t, replayer(t, l).ReplayWorkflowHistory(nil, h))
	return l.heard
}

func TestReplay(t *testing.T) {
	for _, file := range histories(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			h := load(t, file)
			then := recorded(h)
			require.NotEmpty(t, then.answers)
			for _, difference := range then.differences(replay(t, h)) {
				t.Error(difference)
			}
		})
	}
}

// TestEveryVersionOfTheRulesHasAHistory, so that none is replayed by nothing.
func TestEveryVersionOfTheRulesHasAHistory(t *testing.T) {
	for rules := admission.OldestRules; rules <= admission.NewestRules; rules++ {
		files, err := filepath.Glob(fmt.Sprintf("testdata/rules-%d-*.json", rules))
		require.NoError(t, err)
		require.NotEmpty(t, files, "rules %d", rules)
		for _, file := range files {
			seen := false
			for _, answer := range recorded(load(t, file)).answers {
				seen = seen || strings.Contains(answer, fmt.Sprintf(`"rules": %d`, rules))
			}
			require.True(t, seen, "%s is not of rules %d", file, rules)
		}
	}
}

// TestReplayNoticesDecisions: an answer that was another one, or another state for
// the next run, is found, though no command differs.
func TestReplayNoticesDecisions(t *testing.T) {
	for _, file := range histories(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			h := load(t, file)
			then := recorded(h)
			for id, answer := range then.answers {
				then.answers[id] = strings.Replace(answer, `"lease": "`, `"lease": "1`, 1)
			}
			require.NotEmpty(t, then.differences(replay(t, h)))
			then = recorded(h)
			then.next += " "
			require.Len(t, then.differences(replay(t, h)), 1)
		})
	}
}

// TestReplayNotices makes sure that the replay can fail: without its first timer
// a history is not what the workflow does.
func TestReplayNotices(t *testing.T) {
	h := load(t, histories(t)[0])
	for i, e := range h.Events {
		if a := e.GetTimerStartedEventAttributes(); a != nil {
			a.TimerId = "another"
			break
		}
		require.Less(t, i, len(h.Events)-1, "the history has no timer")
	}
	require.Error(t, replayer(t).ReplayWorkflowHistory(nil, h))
}
