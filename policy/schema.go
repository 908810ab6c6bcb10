package policy

import (
	"bytes"
	"encoding/json"
	"strings"
)

//go:generate go test . -run ^TestSchema$ -update

// Schema is a JSON Schema (draft 2020-12) of the policy file, for editors:
// every key with what it is for, what it may be and its default. It comes from
// the same table by which files are read. What it refuses is a fault, but it
// can't tell every fault: durations out of bounds, hosts and patterns that are
// not valid, and what concerns several keys or gates are the reader's.
//
// The same bytes are kept as policy/schema.json.
func Schema() []byte {
	root := append(mapping{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"},
		{"title", "Sluice policy"},
		{"description", "Which calls are gated, and what their gates enforce."},
	}, fileForm.schema()...)
	var compact, indented bytes.Buffer
	writeOrdered(&compact, root)
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		panic("policy: the schema is no JSON: " + err.Error()) // writeOrdered is wrong, whatever was called
	}
	indented.WriteByte('\n')
	return indented.Bytes()
}

// schema is the form's, with what the field adds.
func (f field) schema() mapping {
	m := mapping{{"description", f.description()}}
	if d := f.defaultValue(); d != nil {
		m = append(m, pair{"default", d})
	}
	if f.example != nil {
		m = append(m, pair{"examples", []any{f.example}})
	}
	return append(m, f.form.schema()...)
}

// description is the field in words, for an editor.
func (f field) description() string {
	text := f.doc
	if allowed := f.form.allowed(); allowed != "" {
		text += "\nAllowed: " + allowed + "."
	}
	if f.unset != "" && !strings.HasPrefix(f.unset, required) {
		text += "\nDefault: " + f.unset + "."
	}
	return text
}

// defaultValue is what holds where the field is not given, where that is one
// value.
func (f field) defaultValue() any {
	if f.unset != "" {
		return nil
	}
	if f.name == "on_invalid" {
		return string(InvalidRefuse)
	}
	g := &Gate{}
	g.setDefaults()
	if k := keyNamed(f.name); k.value != nil {
		return k.value(g)
	}
	return nil
}

// writeOrdered writes JSON with the keys in their order, where
// [mapping.MarshalJSON] sorts them, and without escapes for HTML.
func writeOrdered(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case mapping:
		b.WriteByte('{')
		for i, p := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeOrdered(b, p.key)
			b.WriteByte(':')
			writeOrdered(b, p.value)
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeOrdered(b, item)
		}
		b.WriteByte(']')
	default:
		encoder := json.NewEncoder(b)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(v) // a text, a number or a boolean
	}
}
