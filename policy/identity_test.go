package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCanonicalEndpoint(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		// scheme and white space
		{"https://api.openai.com/v1", "https://api.openai.com/v1"},
		{"  https://api.openai.com/v1\n", "https://api.openai.com/v1"},
		{"HTTPS://api.openai.com/v1", "https://api.openai.com/v1"},
		{"HtTpS://API.OpenAI.com/v1", "https://api.openai.com/v1"},
		{"api.openai.com/v1", "https://api.openai.com/v1"},
		{"//api.openai.com/v1", "https://api.openai.com/v1"},
		{"localhost:8080/v1", "https://localhost:8080/v1"},
		{"api.openai.com/v1?next=http://other/x", "https://api.openai.com/v1"},
		{"http://api.openai.com/v1", "http://api.openai.com/v1"},
		// host
		{"https://api.openai.com./v1", "https://api.openai.com/v1"},
		{"https://API.OPENAI.COM", "https://api.openai.com"},
		{"https://bücher.example", "https://xn--bcher-kva.example"},
		{"https://BÜCHER.example", "https://xn--bcher-kva.example"},
		{"https://b%C3%BCcher.example", "https://xn--bcher-kva.example"},
		{"https://XN--BCHER-KVA.example", "https://xn--bcher-kva.example"},
		{"https://例え。テスト/p", "https://xn--r8jz45g.xn--zckzah/p"},
		{"https://ａｐｉ.example", "https://api.example"},
		{"https://my_service.internal", "https://my_service.internal"},
		{"https://r3---sn.example", "https://r3---sn.example"},
		{"https://127.0.0.1/v1", "https://127.0.0.1/v1"},
		{"https://[::1]/v1", "https://[::1]/v1"},
		{"https://[0:0:0:0:0:0:0:1]/v1", "https://[::1]/v1"},
		{"https://[2001:DB8::00A]:8443", "https://[2001:db8::a]:8443"},
		{"https://[2001:db8:0:0:1:0:0:1]", "https://[2001:db8::1:0:0:1]"},
		{"http://[fe80::1%25eth0]:80/v1", "http://[fe80::1%25eth0]/v1"},
		{"https://[::ffff:1.2.3.4]", "https://[::ffff:1.2.3.4]"},
		// port
		{"https://api.openai.com:443/v1", "https://api.openai.com/v1"},
		{"https://api.openai.com:0443/v1", "https://api.openai.com/v1"},
		{"https://api.openai.com:/v1", "https://api.openai.com/v1"},
		{"https://api.openai.com:80/v1", "https://api.openai.com:80/v1"},
		{"https://api.openai.com:8443/v1", "https://api.openai.com:8443/v1"},
		{"http://api.openai.com:80/v1", "http://api.openai.com/v1"},
		{"http://api.openai.com:443/v1", "http://api.openai.com:443/v1"},
		{"https://[::1]:443", "https://[::1]"},
		{"https://h:65535", "https://h:65535"},
		// trailing slash
		{"https://api.openai.com/", "https://api.openai.com"},
		{"https://api.openai.com//", "https://api.openai.com"},
		{"https://api.openai.com/v1/", "https://api.openai.com/v1"},
		{"https://api.openai.com/v1//", "https://api.openai.com/v1"},
		{"https://h/a//b", "https://h/a//b"},
		// dot segments
		{"https://h/./v1", "https://h/v1"},
		{"https://h/x/../v1", "https://h/v1"},
		{"https://h/../../v1", "https://h/v1"},
		{"https://h/v1/.", "https://h/v1"},
		{"https://h/v1/x/..", "https://h/v1"},
		{"https://h/v1/..", "https://h"},
		{"https://h/%2e%2E/v1", "https://h/v1"},
		{"https://h/x/%2e./v1", "https://h/v1"},
		{"https://h/.well-known/x", "https://h/.well-known/x"},
		{"https://h/a...b/..c", "https://h/a...b/..c"},
		// percent-encoding
		{"https://h/%76%31", "https://h/v1"},
		{"https://h/%7Euser", "https://h/~user"},
		{"https://h/~user", "https://h/~user"},
		{"https://h/a%2fb", "https://h/a%2Fb"},
		{"https://h/a%2Fb", "https://h/a%2Fb"},
		{"https://h/a%3ab", "https://h/a%3Ab"},
		{"https://h/a:b@c", "https://h/a:b@c"},
		{"https://h/a b", "https://h/a%20b"},
		{"https://h/a%20b", "https://h/a%20b"},
		{"https://h/ü", "https://h/%C3%BC"},
		{"https://h/%c3%bc", "https://h/%C3%BC"},
		{"https://h/a%2Fb/ü", "https://h/a%2Fb/%C3%BC"},
		{"https://h/a\"b<c>", "https://h/a%22b%3Cc%3E"},
		{"https://h/%25", "https://h/%25"},
		// path case is kept
		{"https://h/V1/Chat", "https://h/V1/Chat"},
		// userinfo, query, fragment
		{"https://user:pass@api.openai.com/v1", "https://api.openai.com/v1"},
		{"https://sk-secret@api.openai.com/v1", "https://api.openai.com/v1"},
		{"https://api.openai.com/v1?api-key=secret", "https://api.openai.com/v1"},
		{"https://api.openai.com/v1#secret", "https://api.openai.com/v1"},
		{"https://api.openai.com?key=a/b", "https://api.openai.com"},
		{"https://api.openai.com#a/b?c", "https://api.openai.com"},
		{"https://user@[::1]:443/v1/?x#y", "https://[::1]/v1"},
	} {
		t.Run(c.raw, func(t *testing.T) {
			got, err := CanonicalEndpoint(c.raw)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
			again, err := CanonicalEndpoint(got)
			require.NoError(t, err)
			assert.Equal(t, got, again, "canonical stays canonical")
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
		"https://user:secret@" + strings.Repeat("a", 300) + "/", "://secret", "https://user:secret@.h/", "https://user:secret@xn--\u00fc-.\u200d/",
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
