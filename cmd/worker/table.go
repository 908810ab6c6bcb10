package main

import (
	"strings"
	"time"
	"unicode/utf8"

	"sluice/cmd/worker/internal/reading"
)

// tableWidth is what a table keeps to, in characters, so that it doesn't wrap.
const tableWidth = 100

// table is rows of text under a head, in columns as wide as their content.
type table struct {
	head  []string
	right map[int]bool // columns of numbers
	// narrow is the column that is cut in its middle where a row would be wider
	// than tableWidth.
	narrow int
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

const (
	gutter = "  "
	// leastNarrow is how much of the narrow column is always shown.
	leastNarrow = 12
)

// write writes the rows, each line behind an indent.
func (t *table) write(b *strings.Builder, indent string) {
	widths := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, row := range all {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := len(indent) + len(gutter)*(len(widths)-1)
	for _, w := range widths {
		total += w
	}
	if over := total - tableWidth; over > 0 {
		widths[t.narrow] = max(widths[t.narrow]-over, leastNarrow)
	}
	for _, row := range all {
		var line strings.Builder
		line.WriteString(indent)
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString(gutter)
			}
			if t.right[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// shorten cuts a text in its middle: of names, both ends say most.
func shorten(text string, width int) string {
	text = printable(text)
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	front := (width - 1) / 2
	return string(runes[:front]) + "…" + string(runes[len(runes)-(width-1-front):])
}

// printable is a text that moves no cursor: labels and reasons come from
// elsewhere.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// writeList writes parts with commas between them, on lines behind an indent.
func writeList(b *strings.Builder, indent string, parts []string) {
	line := ""
	for i, part := range parts {
		if i < len(parts)-1 {
			part += ","
		}
		part = shorten(part, tableWidth-len(indent))
		switch {
		case line == "":
			line = part
		case len(indent)+utf8.RuneCountInString(line)+1+utf8.RuneCountInString(part) > tableWidth:
			b.WriteString(indent + line + "\n")
			line = part
		default:
			line += " " + part
		}
	}
	b.WriteString(indent + line + "\n")
}

func span(d time.Duration) string { return reading.Span(d) }

func clock(t, now time.Time) string { return reading.Clock(t, now) }
