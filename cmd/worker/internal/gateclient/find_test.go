package gateclient

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMatch(t *testing.T) {
	gates := []string{
		"anthropic@api.anthropic.com/v1",
		"openai@api.openai.com/v1",
		"openai@api.openai.com/v1#gpt-4o",
		"openai@api.openai.com/v1#gpt-4o-mini",
	}
	for name, want := range map[string]string{
		"openai@api.openai.com/v1": "openai@api.openai.com/v1", // the whole ID, though others begin so
		"gpt-4o":                   "openai@api.openai.com/v1#gpt-4o",
		"#gpt-4o":                  "openai@api.openai.com/v1#gpt-4o",
		"mini":                     "openai@api.openai.com/v1#gpt-4o-mini",
		"anthropic":                "anthropic@api.anthropic.com/v1",
		"api.openai.com/v1":        "openai@api.openai.com/v1",
	} {
		got, err := Match(name, gates, "default")
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	for name, says := range map[string]string{
		"openai": `"openai" may be openai@api.openai.com/v1, openai@api.openai.com/v1#gpt-4o, openai@api.openai.com/v1#gpt-4o-mini; say more of it`,
		"v1":     `"v1" may be anthropic@api.anthropic.com/v1, openai@api.openai.com/v1; say more of it`,
		"gemini": `no gate "gemini" runs in namespace default; there is anthropic@api.anthropic.com/v1, openai@api.openai.com/v1, openai@api.openai.com/v1#gpt-4o, openai@api.openai.com/v1#gpt-4o-mini`,
		"":       `no gate "" runs in namespace default; there is anthropic@api.anthropic.com/v1, openai@api.openai.com/v1, openai@api.openai.com/v1#gpt-4o, openai@api.openai.com/v1#gpt-4o-mini`,
	} {
		_, err := Match(name, gates, "default")
		assert.EqualError(t, err, says)
	}
	_, err := Match("openai", nil, "tests")
	assert.EqualError(t, err, `no gate "openai" runs in namespace tests, nor any other; one starts with the first call that it admits`)

	var many []string
	for n := range 20 {
		many = append(many, fmt.Sprintf("p%d@h", n))
	}
	_, err = Match("x", many, "default")
	assert.ErrorContains(t, err, "p7@h and 12 more")
}
