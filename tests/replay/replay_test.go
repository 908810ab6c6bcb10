// Package replay replays recorded histories of the admission workflow. A change
// of its decisions must fail here before it fails in a running gate.
//
// Record a new one with
//
//	go test ./tests/e2e -run TestContinueAsNewUnderLoad/mixed -record ../replay/testdata/rules-N-mixed.json
package replay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	historypb "go.temporal.io/api/history/v1"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

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
func replayer(t *testing.T) sdkworker.WorkflowReplayer {
	t.Helper()
	plugin, err := worker.NewPlugin(worker.Options{})
	require.NoError(t, err)
	r, err := sdkworker.NewWorkflowReplayerWithOptions(sdkworker.WorkflowReplayerOptions{Plugins: []sdkworker.Plugin{plugin}})
	require.NoError(t, err)
	r.RegisterWorkflowWithOptions(workflows.AdmissionWorkflow, workflow.RegisterOptions{Name: workflows.WorkflowType})
	return r
}

func TestReplay(t *testing.T) {
	for _, file := range histories(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			require.NoError(t, replayer(t).ReplayWorkflowHistory(nil, load(t, file)))
		})
	}
}

// TestReplayNotices makes sure that the test above can fail: without its first
// timer a history is not what the workflow does.
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
