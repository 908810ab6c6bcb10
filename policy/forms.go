package policy

import (
	"fmt"
	"strings"
	"time"
)

// form is what a value of the file may be. The reader reads by it; faults,
// schema and reference say it, so that they can't differ.
type form interface {
	// allowed is what the value may be, as a fault says it; empty where the
	// fields of the value say it.
	allowed() string
	// schema is the same in JSON Schema, as far as that can tell.
	schema() mapping
}

// field is a key of a mapping in the file.
type field struct {
	name string
	form form
	// doc says what it is for: whole sentences, in Markdown.
	doc string
	// unset says what holds where the field is not given and its default is not
	// one value; "required" where it must be.
	unset string
	// example is a value that makes sense on its own.
	example any
}

const required = "required"

func namesOf(fields []field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return names
}

// integerForm is a plain decimal integer. zero says what 0 means, where that
// has a meaning of its own.
type integerForm struct {
	least, most int64
	zero        string
}

func (f integerForm) allowed() string {
	return fmt.Sprintf("%d%s to %d", f.least, meaning(f.zero), f.most)
}

func (f integerForm) schema() mapping {
	return mapping{{"type", "integer"}, {"minimum", f.least}, {"maximum", f.most}}
}

// durationForm is a Go duration, or a plain 0.
type durationForm struct {
	least, most time.Duration
	zero        string
}

func (f durationForm) allowed() string {
	return fmt.Sprintf("%s%s to %s, such as 1m30s", DurationText(f.least), meaning(f.zero), DurationText(f.most))
}

// durationPattern is what time.ParseDuration reads, without a minus sign.
const durationPattern = `^(0|\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`

func (f durationForm) schema() mapping {
	text := mapping{{"type", "string"}, {"pattern", durationPattern}}
	if f.least > 0 {
		return append(text, pair{"allOf", []any{mapping{{"pattern", "[1-9]"}}}}) // not zero
	}
	return mapping{{"anyOf", []any{text, mapping{{"const", int64(0)}}}}}
}

// decimalForm is an exact decimal number of at least 0.
type decimalForm struct {
	most   int64
	digits int // after the point
	zero   string
}

func (f decimalForm) allowed() string {
	return fmt.Sprintf("0%s to %d, a plain decimal with at most %d digits after the point", meaning(f.zero), f.most, f.digits)
}

func (f decimalForm) schema() mapping {
	return mapping{{"type", "number"}, {"minimum", int64(0)}, {"maximum", f.most}}
}

// textForm is a text for which valid holds once white space around it is gone.
type textForm struct {
	text  string // what it may be, in words
	valid func(string) bool
	// pattern is no stricter than valid, before white space is gone.
	pattern string
}

func (f textForm) allowed() string { return f.text }
func (f textForm) schema() mapping { return mapping{{"type", "string"}, {"pattern", f.pattern}} }

// wordForm is one of a few words.
type wordForm []string

func (f wordForm) allowed() string { return strings.Join(f, ", ") }

func (f wordForm) schema() mapping {
	return mapping{{"type", "string"}, {"enum", listOf(f, func(s string) any { return s })}}
}

type booleanForm struct{}

func (booleanForm) allowed() string { return "true, false" }
func (booleanForm) schema() mapping { return mapping{{"type", "boolean"}} }

// listForm is a list of values of one form.
type listForm struct {
	of    string // what they are, in the plural
	most  int
	item  form
	least int
	once  bool // each of them once
}

func (f listForm) allowed() string {
	return "at most " + fmt.Sprint(f.most) + " " + f.of + each(f.item.allowed())
}

func each(allowed string) string {
	if allowed == "" {
		return ""
	}
	return ", each " + allowed
}

func (f listForm) schema() mapping {
	m := mapping{{"type", "array"}, {"maxItems", int64(f.most)}}
	if f.least > 0 {
		m = append(m, pair{"minItems", int64(f.least)})
	}
	if f.once {
		m = append(m, pair{"uniqueItems", true})
	}
	return append(m, pair{"items", f.item.schema()})
}

// mappingForm is a mapping with these keys and no others.
type mappingForm struct {
	fields []field
	// rules are further JSON Schemas that it fits.
	rules []any
}

func (mappingForm) allowed() string { return "" }

func (f mappingForm) schema() mapping {
	var properties mapping
	var needed []any
	for _, k := range f.fields {
		properties = append(properties, pair{k.name, k.schema()})
		if k.unset == required {
			needed = append(needed, k.name)
		}
	}
	m := mapping{{"type", "object"}, {"properties", properties}, {"additionalProperties", false}}
	if len(needed) > 0 {
		m = append(m, pair{"required", needed})
	}
	if len(f.rules) > 0 {
		m = append(m, pair{"allOf", f.rules})
	}
	return m
}
