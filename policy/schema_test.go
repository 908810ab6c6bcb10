package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write policy/schema.json and the tables of docs/policy.md as they should be")

// TestSchema keeps schema.json as the reader's table says it.
func TestSchema(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("schema.json", Schema(), 0o644))
	}
	kept, err := os.ReadFile("schema.json")
	require.NoError(t, err)
	assert.Equal(t, string(Schema()), string(kept), "the schema has changed: go generate ./policy")
}

// compiled is the schema as an editor would use it. The compiler holds it
// against the meta-schema of its draft.
func compiled(t require.TestingT) *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("policy.json", document))
	schema, err := c.Compile("policy.json")
	require.NoError(t, err)
	require.Equal(t, 2020, schema.DraftVersion)
	return schema
}

// conforms holds a policy file against the schema.
func conforms(t require.TestingT, schema *jsonschema.Schema, file string) error {
	var document any
	require.NoError(t, yaml.Unmarshal([]byte(file), &document), file)
	data, err := json.Marshal(document)
	if err != nil {
		return err // such as .inf
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	return schema.Validate(instance)
}

// examples are the policies of the documentation.
func examples(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	for _, pattern := range []string{"../README.md", "../docs/*.md", "../examples/*/*.md", "../examples/*/*.yaml"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			data, err := os.ReadFile(name)
			require.NoError(t, err)
			if filepath.Ext(name) == ".yaml" {
				found[name] = string(data)
				continue
			}
			for i, b := range block.FindAllStringSubmatch(string(data), -1) {
				if strings.Contains(b[1], "gates:") {
					found[name+strings.Repeat("'", i)] = b[1]
				}
			}
		}
	}
	require.GreaterOrEqual(t, len(found), 3)
	return found
}

func TestDocumentedPoliciesAreValid(t *testing.T) {
	schema := compiled(t)
	for name, file := range examples(t) {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(name, []byte(file))
			require.NoError(t, err)
			assert.NoError(t, conforms(t, schema, file))
		})
	}
}

func TestSchemaAcceptsWhatTheReaderAccepts(t *testing.T) {
	schema := compiled(t)
	for _, file := range []string{
		designExample, "gates: []\n", "on_invalid: disable\n", "{}",
		gateFile("max_cooldown: 0", "look_ahead: 0s", "budgets: [{unit: a, limit: 0}]", "queue_timeout: 0"),
		gateFile("requests_per_second: 7.5"), gateFile("requests_per_second: 1000000000000"), gateFile("requests: {limit: 0}"),
		gateFile("min_interval: 0"), gateFile("min_interval: 1h1m1s1ms1us1ns"), gateFile("min_interval: .5s"), gateFile("min_interval: +1.s"), gateFile("min_interval: 5µs"),
		gateFile("exclude: ['/a', 'get  /b*', ' POST /c']", "activities: ['a b', '*', ' x ']"),
		gateFile("reset_headers: [{reset: X-Reset, remaining: X!, limit: ' l '}]", "overload_statuses: [400, 599]"),
		gateFile("max_in_flight: 1000000", "max_queue: 2000000", "revision: 9223372036854775807"),
		"gates: [{provider: ' OpenAI ', endpoint: ' //API.example/v1 ', name: 'a:b/c'}]",
	} {
		_, err := Parse("f", []byte(file))
		require.NoError(t, err)
		assert.NoError(t, conforms(t, schema, file), file)
	}
	rapid.Check(t, func(t *rapid.T) {
		p, err := New(anyGate(t))
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, p.WriteEffective(&b))
		require.NoError(t, conforms(t, schema, b.String()), b.String())
	})
}

// beyondTheSchema are faults of one line that the schema can't tell: of the
// spelling of a number, of sizes, of what several values make, of what only YAML
// has.
var beyondTheSchema = []string{
	"max_in_flight: 0x10",
	"max_in_flight: 010",
	"requests_per_second: 1e3",
	"requests_per_second: .5",
	"requests_per_second: 5.",
	"requests_per_second: 0.12345678",
	"min_interval: 0.1ns",
	"min_interval: 9000h",
	"requests: {limit: 1, per: 8784h, burst: 10}",
	"requests: {limit: 1, per: 8784h, burst: 11}",
	"requests: {limit: 1, per: 8784h, burst: 1000000000000}",
	"budgets: [{unit: a, limit: 1, per: 1s}, {unit: a, limit: 1, per: 1s}]",
	"holder_ttl: 10ms",
	"look_ahead: 30s",
	"exclude: ['/a[']",
	"name: &a x",
	"name: !!str x",
}

func TestSchemaRefusesFaults(t *testing.T) {
	schema := compiled(t)
	for _, c := range faultyLines {
		file := gateFile(c.line)
		t.Run(c.line, func(t *testing.T) {
			if yaml.Unmarshal([]byte(file), new(any)) != nil {
				return // an editor says so without a schema
			}
			assert.Equal(t, slices.Contains(beyondTheSchema, c.line), conforms(t, schema, file) == nil)
		})
	}
	for _, file := range []string{
		"[]", "5", "gate: []", "gates: {a: b}", "gates:", "on_invalid: maybe", "gates: [5]",
		"gates: [{provider: p}]", "gates: [{endpoint: h}]", "gates: [{provider: p, endpoint: ''}]", "gates: [{provider: Open AI, endpoint: h}]",
		"gates: [" + strings.Repeat("{provider: p, endpoint: h},", 257) + "]",
		gateFile("min_interval: 1s", "requests_per_second: 3"), gateFile("min_interval: 1s", "requests: {limit: 0}"), gateFile("requests: {limit: 0}", "requests_per_second: 3"),
	} {
		_, err := Parse("f", []byte(file))
		require.Error(t, err, file)
		assert.Error(t, conforms(t, schema, file), file)
	}
}

// Every field says what it is for, and its example and default are valid.
func TestFieldsAreDocumented(t *testing.T) {
	schema := compiled(t)
	var whole func(path string, f form)
	whole = func(path string, f form) {
		switch f := f.(type) {
		case listForm:
			whole(path+"[]", f.item)
		case mappingForm:
			for _, k := range f.fields {
				assert.Regexp(t, `^[A-Z][^|]*\.$`, k.doc, path+"."+k.name)
				whole(path+"."+k.name, k.form)
			}
		}
	}
	whole("", fileForm)

	for _, k := range gateKeys {
		for _, value := range []any{k.example, k.defaultValue()} {
			if value == nil || k.name == "provider" || k.name == "endpoint" {
				continue
			}
			file := gateFile(k.name + ": " + string(jsonOf(value)))
			_, err := Parse("f", []byte(file))
			assert.NoError(t, err)
			assert.NoError(t, conforms(t, schema, file))
		}
		if k.defaultValue() == nil {
			assert.NotEmpty(t, k.unset, "%s has no default, and nothing says what holds without it", k.name)
		}
	}
}

// The pattern in the schema refuses nothing that the reader takes.
func TestPatternsAreNoStricter(t *testing.T) {
	for valid, f := range map[string]textForm{
		"OpenAI": providerForm, "//API.example/v1?x": endpointForm, "org/model:7b": nameForm, "X-RateLimit-Reset": headerForm, "Embed*": activityForm, "get  /a*": excludeForm, "input_tokens": unitForm,
	} {
		t.Run(valid, func(t *testing.T) {
			pattern := regexp.MustCompile(f.pattern)
			assert.True(t, f.valid(valid))
			assert.Regexp(t, pattern, valid)
			rapid.Check(t, func(t *rapid.T) {
				s := rapid.OneOf(
					rapid.StringMatching(`[ -~]{0,8}`),
					rapid.StringMatching(`[a-z][a-z0-9_]{0,40}`),
					rapid.StringMatching(`[a-z0-9][a-zA-Z0-9._-]{0,140}`),
					rapid.StringMatching(`(get|POST)? {0,2}/[a-z*?/]{0,9}`),
					rapid.StringMatching(`(https?:)?//[a-z.]{1,9}(:[0-9]{1,3})?[/?#a-z]{0,9}`),
				).Draw(t, "text")
				s = rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "before") + s
				if f.valid(strings.TrimSpace(s)) && !pattern.MatchString(s) {
					t.Fatalf("%q is valid and does not match %s", s, f.pattern)
				}
			})
		})
	}
}
