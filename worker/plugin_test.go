package worker

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/policy"
)

func TestOptionsAreChecked(t *testing.T) {
	p, err := policy.New()
	require.NoError(t, err)
	_, err = NewPlugin(Options{PolicyFile: "sluice.yaml", Policy: p})
	require.EqualError(t, err, "sluice: both PolicyFile and Policy are set; allowed: one of them")
	_, err = NewPlugin(Options{Transport: "pigeon"})
	require.EqualError(t, err, `sluice: Transport is "pigeon"; allowed: update, signal, mixed`)
	_, err = NewPlugin(Options{PolicyFile: filepath.Join(t.TempDir(), "none.yaml")})
	require.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(t.TempDir(), "sluice.yaml")
	require.NoError(t, os.WriteFile(file, []byte("gates:\n  - provider: openai\n    endpoint: https://api.openai.com/v1\n    max_in_flight: -3\n    max_cooldwn: 2m\n"), 0o600))
	_, err = NewPlugin(Options{PolicyFile: file})
	require.ErrorContains(t, err, "max_in_flight is -3")
	require.ErrorContains(t, err, "max_cooldown", "all faults at once, with the nearest known key")
}

func TestOnePluginServesOneClient(t *testing.T) {
	plugin, err := NewPlugin(Options{})
	require.NoError(t, err)
	options := client.Options{HostPort: "127.0.0.1:1", Plugins: []client.Plugin{plugin}}
	c, err := client.NewLazyClient(options)
	require.NoError(t, err)
	defer c.Close()
	_, err = client.NewLazyClient(options)
	require.ErrorContains(t, err, "one plugin for each client")
}

func TestAPluginNeedsItsClient(t *testing.T) {
	plugin, err := NewPlugin(Options{})
	require.NoError(t, err)
	err = plugin.StartWorker(context.Background(), sdkworker.PluginStartWorkerOptions{}, func(context.Context, sdkworker.PluginStartWorkerOptions) error { return nil })
	require.ErrorContains(t, err, "client.Options.Plugins")
	require.Nil(t, plugin.Gates())
}

type things struct{}

func (things) Make(context.Context) error  { return nil }
func (things) Break(context.Context) error { return nil }

func summarize(context.Context) error { return nil }

func TestActivityNames(t *testing.T) {
	assert.Equal(t, []string{"summarize"}, activityNames(summarize, activity.RegisterOptions{}))
	assert.Equal(t, []string{"Other"}, activityNames(summarize, activity.RegisterOptions{Name: "Other"}))
	assert.Equal(t, []string{"Make"}, activityNames(things{}.Make, activity.RegisterOptions{}))
	assert.Equal(t, []string{"p_Break", "p_Make"}, activityNames(things{}, activity.RegisterOptions{Name: "p_"}))
	assert.Empty(t, activityNames(nil, activity.RegisterOptions{}))
}
