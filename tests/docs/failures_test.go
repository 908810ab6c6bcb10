// Package docs checks what the documentation says about the code.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

var (
	namedTest   = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")
	namedScript = regexp.MustCompile("script `([a-z0-9_]+)`")
	declared    = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\(`)
)

// TestFailuresNameTheirTests: every row of docs/failures.md names a test that
// there is.
func TestFailuresNameTheirTests(t *testing.T) {
	tests := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, found := range declared.FindAllSubmatch(code, -1) {
			tests[string(found[1])] = true
		}
		return err
	}))
	page, err := os.ReadFile(filepath.Join(root, "docs/failures.md"))
	require.NoError(t, err)
	rows := 0
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| fault ") || strings.HasPrefix(line, "| --- ") {
			continue
		}
		rows++
		named := namedTest.FindAllStringSubmatch(line, -1)
		scripts := namedScript.FindAllStringSubmatch(line, -1)
		assert.NotEmpty(t, append(named, scripts...), "a row without a test: %s", line)
		for _, name := range named {
			assert.True(t, tests[name[1]], "no such test: %s", name[1])
		}
		for _, name := range scripts {
			assert.FileExists(t, filepath.Join(root, "admission/testdata", name[1]+".txt"))
		}
	}
	assert.Greater(t, rows, 20)
}
