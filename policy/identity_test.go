package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spellings are endpoints, and the gate ID that each of them gives with provider
// p: the rules of RFC 3986, section 6.2.2 and 6.2.3, and of UTS 46 for hosts.
var spellings = []struct {
	id        string
	endpoints []string
}{
	// Case of scheme and host, white space around, no scheme, default port,
	// trailing slash, root dot, userinfo, query and fragment: one gate.
	{"p@api.example/v1", []string{
		"https://api.example/v1",
		"HTTPS://api.example/v1", "HtTpS://API.Example/v1",
		"  https://api.example/v1\n", "\thttps://api.example/v1\u00a0",
		"api.example/v1", "//api.example/v1", "API.EXAMPLE/v1/",
		"https://api.example:443/v1", "https://api.example:0443/v1", "https://api.example:/v1", "api.example:443/v1",
		"https://api.example/v1/", "https://api.example/v1//", "https://api.example:443/v1///",
		"https://api.example./v1", "https://api.example.:443/v1/",
		"https://user:secret@api.example/v1", "https://sk-secret@api.example/v1", "https://u:p%40ss@API.example:443/v1", "https://@api.example/v1",
		"https://api.example/v1?api-key=secret", "https://api.example/v1?", "https://api.example/v1/?next=http://other/x", "https://api.example/v1?a=/../b",
		"https://api.example/v1#secret", "https://api.example/v1#", "https://user@api.example:443/v1/?x#y", "api.example/v1?next=http://other/x",
		"https://api.example/./v1", "https://api.example/x/../v1", "https://api.example/../../v1", "https://api.example/v1/.", "https://api.example/v1/x/..", "https://api.example/v1/./",
		"https://api.example/%2e%2E/v1", "https://api.example/x/%2e./v1", "https://api.example/x/y/../../v1",
		"https://api.example/%76%31", "https://api.example/v%31", "https://api.example/%761/",
		"https://ap\u00adi.example/v1", "https://ａｐｉ.example/v1",
	}},
	// No path.
	{"p@api.example", []string{
		"https://api.example", "https://api.example/", "https://api.example//", "https://API.EXAMPLE?key=a/b", "https://api.example#a/b?c", "https://api.example/v1/..", "https://api.example/.", "https://api.example/%2e",
	}},
	// http is told apart, and has a default port of its own.
	{"p@http://api.example/v1", []string{"http://api.example/v1", "HTTP://api.example:80/v1/", "http://user@API.example:080/v1?x"}},
	{"p@http://api.example:443/v1", []string{"http://api.example:443/v1"}},
	{"p@api.example:80/v1", []string{"https://api.example:80/v1", "api.example:080/v1"}},
	{"p@api.example:8443", []string{"https://api.example:8443", "https://api.example:8443/", "https://api.example:008443"}},
	{"p@localhost:65535", []string{"localhost:65535", "https://LOCALHOST:65535/"}},
	// International hosts, composed or not, in their ASCII form.
	{"p@xn--bcher-kva.example", []string{"https://bücher.example", "https://BÜCHER.example", "https://bu\u0308cher.example", "https://b%C3%BCcher.example", "https://XN--BCHER-KVA.example", "https://bücher。example."}},
	{"p@xn--r8jz45g.xn--zckzah/p", []string{"https://例え.テスト/p", "https://例え。テスト/p", "https://xn--r8jz45g.xn--zckzah/p"}},
	{"p@xn--strae-oqa.example", []string{"https://straße.example"}},
	// Hosts that are no public names.
	{"p@my_service.internal", []string{"https://my_service.internal", "https://My_Service.internal/"}},
	{"p@r3---sn.example", []string{"https://r3---sn.example"}},
	// Addresses. IPv6 in brackets, in the shortest form of RFC 5952.
	{"p@127.0.0.1/v1", []string{"https://127.0.0.1/v1", "127.0.0.1:443/v1"}},
	{"p@[::1]/v1", []string{"https://[::1]/v1", "https://[0:0:0:0:0:0:0:1]/v1", "https://[0000::0001]:443/v1/", "https://user@[::1]:443/v1/?x#y", "//[::1]/v1"}},
	{"p@[2001:db8::a]:8443", []string{"https://[2001:DB8::00A]:8443", "https://[2001:db8:0:0::a]:8443/"}},
	{"p@[2001:db8::1:0:0:1]", []string{"https://[2001:db8:0:0:1:0:0:1]"}},
	{"p@[::ffff:1.2.3.4]", []string{"https://[::ffff:1.2.3.4]", "https://[::FFFF:102:304]"}},
	{"p@http://[fe80::1%25eth0]/v1", []string{"http://[fe80::1%25eth0]:80/v1", "http://[FE80::1%25eth0]/v1"}},
	// Percent-encoding: unreserved characters as themselves, all else in capital
	// hexadecimal digits; a reserved character stays as it was written.
	{"p@h/~user", []string{"https://h/~user", "https://h/%7Euser", "https://h/%7euser"}},
	{"p@h/a%2Fb", []string{"https://h/a%2Fb", "https://h/a%2fb"}},
	{"p@h/..%2Fv1", []string{"https://h/..%2Fv1", "https://h/%2e%2e%2fv1"}},
	{"p@h/a%3Ab", []string{"https://h/a%3ab", "https://h/%61%3Ab"}},
	{"p@h/a:b@c", []string{"https://h/a:b@c"}},
	{"p@h/a%20b", []string{"https://h/a b", "https://h/a%20b"}},
	{"p@h/a+b", []string{"https://h/a+b"}},
	{"p@h/a%2Bb", []string{"https://h/a%2Bb", "https://h/a%2bb"}},
	{"p@h/%C3%BC", []string{"https://h/ü", "https://h/%c3%bc"}},
	{"p@h/a%2Fb/%C3%BC", []string{"https://h/a%2Fb/ü"}},
	{"p@h/a%22b%3Cc%3E", []string{"https://h/a\"b<c>", "https://h/a%22b%3cc%3e"}},
	{"p@h/%25", []string{"https://h/%25"}},
	{"p@h/%2525", []string{"https://h/%2525"}}, // decoded once, not twice
	// What stays as it is.
	{"p@h/V1/Chat", []string{"https://h/V1/Chat"}},
	{"p@h/a//b", []string{"https://h/a//b", "https://h/a//b/"}},
	{"p@h/.well-known/x", []string{"https://h/.well-known/x"}},
	{"p@h/a...b/..c", []string{"https://h/a...b/..c"}},
	{"p@h/openai/deployments/gpt-4o", []string{"https://h/openai/deployments/gpt-4o?api-version=2024-10-21"}},
	{"p@h/a;b=c,d", []string{"https://h/a;b=c,d"}},
}

// TestSpellingsOfAGate: all spellings of one endpoint are one gate, and two
// endpoints never share one.
func TestSpellingsOfAGate(t *testing.T) {
	seen, count := map[string]string{}, 0
	for _, c := range spellings {
		assert.Empty(t, seen[c.id], "one entry for each ID")
		for _, raw := range c.endpoints {
			count++
			t.Run(raw, func(t *testing.T) {
				g := Gate{Provider: "p", Endpoint: raw}
				assert.Equal(t, c.id, g.ID())
				assert.Equal(t, "sluice/"+c.id, g.WorkflowID())

				endpoint, err := CanonicalEndpoint(raw)
				require.NoError(t, err)
				again, err := CanonicalEndpoint(endpoint)
				require.NoError(t, err)
				assert.Equal(t, endpoint, again, "canonical stays canonical")
				normal, err := g.Normalize()
				require.NoError(t, err)
				assert.Equal(t, c.id, normal.ID(), "a normalised gate is the same gate")

				other, taken := seen[endpoint]
				assert.True(t, !taken || other == c.id, "%s is also that of %s", endpoint, other)
				seen[endpoint], seen[c.id] = c.id, c.id
			})
		}
	}
	t.Logf("%d spellings of %d gates", count, len(spellings))
}

// TestGatesThatMustDiffer: what looks alike and is not.
func TestGatesThatMustDiffer(t *testing.T) {
	for what, c := range map[string][2]Gate{
		"provider":                     {{Provider: "a", Endpoint: "h"}, {Provider: "b", Endpoint: "h"}},
		"name":                         {{Provider: "p", Endpoint: "h"}, {Provider: "p", Endpoint: "h", Name: "a"}},
		"case of the name":             {{Provider: "p", Endpoint: "h", Name: "a"}, {Provider: "p", Endpoint: "h", Name: "A"}},
		"name like a path":             {{Provider: "p", Endpoint: "h/a"}, {Provider: "p", Endpoint: "h", Name: "a"}},
		"name behind a path":           {{Provider: "p", Endpoint: "h/a", Name: "b"}, {Provider: "p", Endpoint: "h", Name: "a/b"}},
		"scheme":                       {{Provider: "p", Endpoint: "https://h"}, {Provider: "p", Endpoint: "http://h"}},
		"the other scheme's port":      {{Provider: "p", Endpoint: "https://h:80"}, {Provider: "p", Endpoint: "http://h:80"}},
		"port":                         {{Provider: "p", Endpoint: "h:8443"}, {Provider: "p", Endpoint: "h"}},
		"host":                         {{Provider: "p", Endpoint: "a.h"}, {Provider: "p", Endpoint: "h"}},
		"ß and ss":                     {{Provider: "p", Endpoint: "straße.example"}, {Provider: "p", Endpoint: "strasse.example"}},
		"letters that look alike":      {{Provider: "p", Endpoint: "аpi.example"}, {Provider: "p", Endpoint: "api.example"}},
		"IPv4 and the same as IPv6":    {{Provider: "p", Endpoint: "https://1.2.3.4"}, {Provider: "p", Endpoint: "https://[::ffff:1.2.3.4]"}},
		"zone":                         {{Provider: "p", Endpoint: "http://[fe80::1%25a]"}, {Provider: "p", Endpoint: "http://[fe80::1%25b]"}},
		"path":                         {{Provider: "p", Endpoint: "h/v1"}, {Provider: "p", Endpoint: "h"}},
		"a longer segment":             {{Provider: "p", Endpoint: "h/v1"}, {Provider: "p", Endpoint: "h/v10"}},
		"case of the path":             {{Provider: "p", Endpoint: "h/V1"}, {Provider: "p", Endpoint: "h/v1"}},
		"an empty segment":             {{Provider: "p", Endpoint: "h/a//b"}, {Provider: "p", Endpoint: "h/a/b"}},
		"an encoded slash":             {{Provider: "p", Endpoint: "h/a%2Fb"}, {Provider: "p", Endpoint: "h/a/b"}},
		"an encoded reserved one":      {{Provider: "p", Endpoint: "h/a%3Ab"}, {Provider: "p", Endpoint: "h/a:b"}},
		"a plus is no space in a path": {{Provider: "p", Endpoint: "h/a+b"}, {Provider: "p", Endpoint: "h/a%20b"}},
		"encoded twice":                {{Provider: "p", Endpoint: "h/%2561"}, {Provider: "p", Endpoint: "h/%61"}},
		"dots that are no segment":     {{Provider: "p", Endpoint: "h/a/..%2Fb"}, {Provider: "p", Endpoint: "h/b"}},
	} {
		t.Run(what, func(t *testing.T) {
			a, b := c[0].ID(), c[1].ID()
			assert.NotEmpty(t, a)
			assert.NotEmpty(t, b)
			assert.NotEqual(t, a, b)
			_, err := New(c[0], c[1])
			assert.NoError(t, err, "both fit in one policy")
		})
	}
}

func TestEndpointErrorsKeepSecrets(t *testing.T) {
	for _, raw := range []string{
		"", "   ", "https://", "https:///v1", "https://?secret", "ftp://user:secret@h/v1", "https:/secret.example/v1", "http:secret",
		"https://user:secret@h:99999/v1", "https://user:secret@h:0/", "https://user:secret@h:x/", "https://us er:secret@h/v1",
		"https://user:se/cret@h/v1", "https://user:secret@h/%zz", "https://user:secret@h/v1%", "https://user:secret@a..b/", "https://user:secret@a b/",
		"https://user:secret@[::1/v1", "https://user:secret@[1.2.3.4]/v1", "https://user:secret@h\x00/v1", "https://user:secret@h\\/v1",
		"https://user:secret@%zz/", "https://user:secret@exa$mple/", "https://h/" + strings.Repeat("secret/", 100),
		"https://user:secret@" + strings.Repeat("a", 300) + "/", "://secret", "https://user:secret@.h/", "https://user:secret@a%70i.example/", // net/url, and so a client, refuses it
		"https://user:secret@xn--\u00fc-.\u200d/",
	} {
		t.Run(raw, func(t *testing.T) {
			_, err := CanonicalEndpoint(raw)
			require.Error(t, err)
			assert.NotContains(t, err.Error(), "secret\"")
			assert.NotContains(t, err.Error(), "user")

			_, err = Gate{Provider: "p", Endpoint: raw}.Normalize()
			var faults *FaultError
			if raw == "" {
				require.ErrorContains(t, err, "endpoint: is missing")
				return
			}
			require.ErrorAs(t, err, &faults)
			assert.NotContains(t, strings.ReplaceAll(err.Error(), "may hold a secret", ""), "secret")
			assert.Empty(t, Gate{Provider: "p", Endpoint: raw}.ID())
			assert.Empty(t, Gate{Provider: "p", Endpoint: raw}.WorkflowID())
		})
	}
}

func TestGateID(t *testing.T) {
	for _, c := range []struct {
		gate Gate
		want string
	}{
		{Gate{Provider: "openai", Endpoint: "https://api.openai.com/v1", Name: "gpt-4o"}, "openai@api.openai.com/v1#gpt-4o"},
		{Gate{Provider: " OpenAI ", Endpoint: "https://api.openai.com:443/v1/"}, "openai@api.openai.com/v1"},
		{Gate{Provider: "openai", Endpoint: "http://localhost:8080/v1"}, "openai@http://localhost:8080/v1"},
		{Gate{Provider: "azure-openai", Endpoint: "https://x.openai.azure.com/openai?api-version=2"}, "azure-openai@x.openai.azure.com/openai"},
		{Gate{Provider: "p", Endpoint: "https://h", Name: "org/model:7b"}, "p@h#org/model:7b"},
		{Gate{Provider: "p", Endpoint: "https://h", Name: "a#b"}, ""},
		{Gate{Provider: "p q", Endpoint: "https://h"}, ""},
		{Gate{Provider: "\u212A", Endpoint: "https://h"}, ""}, // the Kelvin sign is no k
		{Gate{Endpoint: "https://h"}, ""},
	} {
		assert.Equal(t, c.want, c.gate.ID())
		if c.want != "" {
			assert.Equal(t, "sluice/"+c.want, c.gate.WorkflowID())
		}
	}
}

func FuzzCanonicalEndpoint(f *testing.F) {
	for _, s := range []string{"https://user:pw@Api.example:443/a/../b%7e?x#y", "http://[::1%25lo]/", "bücher.example/ü", "//h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := CanonicalEndpoint(raw)
		if err != nil {
			return
		}
		again, err := CanonicalEndpoint(got)
		if err != nil || again != got {
			t.Fatalf("%q -> %q -> %q, %v", raw, got, again, err)
		}
		if strings.ContainsAny(got, "?# \n\"") {
			t.Fatalf("%q -> %q", raw, got)
		}
	})
}
