package policy

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func findPolicy(t testing.TB) *Policy {
	p, err := New(
		Gate{Provider: "openai", Endpoint: "https://api.openai.com/v1", Exclude: []string{"/models", "get /health*", "/files/*/content"}},
		Gate{Provider: "openai", Endpoint: "https://api.openai.com/v1", Name: "gpt-4o"},
		Gate{Provider: "openai", Endpoint: "https://api.openai.com/v1/images", Name: "images"},
		Gate{Provider: "many", Endpoint: "https://many.example", Name: "a", Exclude: []string{"/models"}},
		Gate{Provider: "many", Endpoint: "https://many.example", Name: "b", Exclude: []string{"/models", "/"}},
		Gate{Provider: "two", Endpoint: "https://shared.example"},
		Gate{Provider: "three", Endpoint: "https://shared.example"},
		Gate{Provider: "local", Endpoint: "http://[::1]:8080"},
	)
	require.NoError(t, err)
	return p
}

func TestFind(t *testing.T) {
	p := findPolicy(t)
	for _, c := range []struct {
		method, url, name string
		want              string // gate ID; empty: not gated
		err               error
	}{
		{"POST", "https://api.openai.com/v1/chat/completions", "", "openai@api.openai.com/v1", nil},
		{"POST", "https://api.openai.com/v1", "", "openai@api.openai.com/v1", nil},
		{"POST", "https://api.openai.com/v1/?x=1", "", "openai@api.openai.com/v1", nil},
		{"POST", "https://user:pw@API.openai.com.:443/%761/x/../chat", "", "openai@api.openai.com/v1", nil},
		{"POST", "https://api.openai.com/v10/chat", "", "", nil},
		{"POST", "https://api.openai.com/v1/../v2", "", "", nil},
		{"POST", "https://api.openai.com/V1/chat", "", "", nil},
		{"POST", "http://api.openai.com/v1/chat", "", "", nil},
		{"POST", "https://api.openai.com:8443/v1/chat", "", "", nil},
		{"POST", "https://other.example/v1", "", "", nil},
		{"POST", "/v1/chat", "", "", nil},
		// exclude
		{"GET", "https://api.openai.com/v1/models", "", "", nil},
		{"GET", "https://api.openai.com/v1/models/", "", "", nil},
		{"GET", "https://api.openai.com/v1/models/gpt-4o", "", "openai@api.openai.com/v1", nil},
		{"GET", "https://api.openai.com/v1/healthz", "", "", nil},
		{"", "https://api.openai.com/v1/healthz", "", "", nil},
		{"POST", "https://api.openai.com/v1/healthz", "", "openai@api.openai.com/v1", nil},
		{"GET", "https://api.openai.com/v1/files/7/content", "", "", nil},
		{"GET", "https://api.openai.com/v1/files/7/8/content", "", "openai@api.openai.com/v1", nil},
		// names
		{"POST", "https://api.openai.com/v1/chat", "gpt-4o", "openai@api.openai.com/v1#gpt-4o", nil},
		{"POST", "https://api.openai.com/v1/chat", "openai@api.openai.com/v1", "openai@api.openai.com/v1", nil},
		{"GET", "https://api.openai.com/v1/models", "gpt-4o", "openai@api.openai.com/v1#gpt-4o", nil},
		{"POST", "https://api.openai.com/v1/chat", "gpt-5", "", ErrUnknownGate},
		{"POST", "https://api.openai.com/v1/chat", "a", "", ErrUnknownGate},
		{"POST", "https://other.example", "gpt-4o", "", nil},
		{"POST", "https://other.example", "gpt-5", "", ErrUnknownGate},
		// the longest prefix
		{"POST", "https://api.openai.com/v1/images/generations", "", "openai@api.openai.com/v1/images#images", nil},
		{"POST", "https://api.openai.com/v1/images/generations", "gpt-4o", "openai@api.openai.com/v1#gpt-4o", nil},
		{"POST", "https://api.openai.com/v1/chat", "images", "", ErrUnknownGate},
		// no unnamed gate
		{"POST", "https://many.example/x", "b", "many@many.example#b", nil},
		{"POST", "https://many.example/x", "", "", ErrAmbiguousGate},
		{"GET", "https://many.example/models", "", "", nil},
		{"GET", "https://many.example", "b", "", nil},
		{"GET", "https://many.example", "a", "many@many.example#a", nil},
		// two providers, one endpoint
		{"POST", "https://shared.example/x", "", "", ErrAmbiguousGate},
		{"POST", "https://shared.example/x", "two@shared.example", "two@shared.example", nil},
		{"POST", "http://[0::1]:8080/x", "", "local@http://[::1]:8080", nil},
	} {
		t.Run(c.method+" "+c.url+" "+c.name, func(t *testing.T) {
			u, err := url.Parse(c.url)
			require.NoError(t, err)
			g, err := p.Find(c.method, u, c.name)
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				assert.Contains(t, err.Error(), "@", "it lists the gates there are")
				assert.Nil(t, g)
				return
			}
			require.NoError(t, err)
			if c.want == "" {
				assert.Nil(t, g)
				return
			}
			require.NotNil(t, g)
			assert.Equal(t, c.want, g.ID())
		})
	}
}

func TestFindWithoutPolicy(t *testing.T) {
	var none *Policy
	g, err := none.Find("GET", &url.URL{Scheme: "https", Host: "h"}, "x")
	assert.NoError(t, err)
	assert.Nil(t, g)
	assert.Nil(t, none.ByActivity("x"))
	assert.Nil(t, none.ByID("x"))
	assert.Empty(t, none.Gates())

	g, err = findPolicy(t).Find("GET", nil, "")
	assert.NoError(t, err)
	assert.Nil(t, g)
}

func TestFindOpaqueAndBuiltURLs(t *testing.T) {
	p := findPolicy(t)
	for _, u := range []*url.URL{
		{Scheme: "https", Host: "api.openai.com", Path: "v1/chat"},
		{Scheme: "https", Host: "api.openai.com", Opaque: "//api.openai.com/v1/chat%2Fx?q"},
		{Scheme: "HTTPS", Host: "api.openai.com", Path: "/v1/a b"},
	} {
		g, err := p.Find("POST", u, "")
		require.NoError(t, err)
		require.NotNil(t, g, u.String())
		assert.Equal(t, "openai@api.openai.com/v1", g.ID())
	}
}

func TestFindAllocatesNothing(t *testing.T) {
	p := findPolicy(t)
	u, err := url.Parse("https://api.openai.com/v1/chat/completions")
	require.NoError(t, err)
	for _, name := range []string{"", "gpt-4o"} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = p.Find("POST", u, name) }))
	}
}

func TestByName(t *testing.T) {
	p := findPolicy(t)
	g, err := p.ByName("gpt-4o")
	require.NoError(t, err)
	assert.Equal(t, "openai@api.openai.com/v1#gpt-4o", g.ID())
	assert.Same(t, g, p.ByID(g.ID()))
	g, err = p.ByName("two@shared.example")
	require.NoError(t, err)
	assert.Equal(t, "two", g.Provider)
	for _, name := range []string{"", "nobody", "https://user:secret@h"} {
		_, err = p.ByName(name)
		require.ErrorIs(t, err, ErrUnknownGate)
		assert.Contains(t, err.Error(), "three@shared.example")
		assert.NotContains(t, err.Error(), "secret")
	}

	p, err = New(Gate{Provider: "a", Endpoint: "h", Name: "x"}, Gate{Provider: "b", Endpoint: "h", Name: "x"})
	require.NoError(t, err)
	_, err = p.ByName("x")
	assert.ErrorIs(t, err, ErrAmbiguousGate)
}

func TestByActivity(t *testing.T) {
	p, err := New(
		Gate{Provider: "a", Endpoint: "https://a", Activities: []string{"CallOpenAI", "Call*Twice", "CallMeTwice"}},
		Gate{Provider: "b", Endpoint: "https://b", Activities: []string{"Embed*"}},
	)
	require.NoError(t, err)
	for name, provider := range map[string]string{
		"CallOpenAI": "a", "CallTwice": "a", "CallItTwice": "a", "CallMeTwice": "a", "Embed": "b", "EmbedAll": "b",
		"callopenai": "", "Call": "", "": "", "CallItTwiceMore": "",
	} {
		g := p.ByActivity(name)
		if provider == "" {
			assert.Nil(t, g, name)
		} else if assert.NotNil(t, g, name) {
			assert.Equal(t, provider, g.Provider, name)
		}
	}
	assert.Equal(t, []string{"Call*Twice (a@a)", "CallMeTwice (a@a)"}, p.UnmatchedActivities([]string{"CallOpenAI", "EmbedX"}))
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a*", "ab*", true}, {"a*", "*b", true}, {"a*c", "ab*", true}, {"a*c", "b*c", false}, {"*a", "*b", false},
		{"*", "anything", true}, {"a**b", "ab", true}, {"ab", "ab", true}, {"ab", "abc", false}, {"*x*", "y*z", true}, {"", "*", true}, {"", "a", false},
	} {
		assert.Equal(t, c.want, overlap(c.a, c.b), "%s %s", c.a, c.b)
		assert.Equal(t, c.want, overlap(c.b, c.a), "%s %s", c.b, c.a)
	}
}
