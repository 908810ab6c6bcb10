// Package imports tests which package may import which.
package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	module = "sluice"
	server = "go.temporal.io/server"
)

// allowed are the packages of this module that each library package may import,
// directly or not. Everything in the module that is not listed (cmd, examples,
// tests) is imported by none of them.
var allowed = map[string][]string{
	"sluice/admission":          {},
	"sluice/policy":             {"sluice/admission"},
	"sluice/workflows/contract": {},
	"sluice/workflows":          {"sluice/admission", "sluice/policy", "sluice/workflows/contract"},
	"sluice/activities":         {"sluice/admission", "sluice/policy", "sluice/workflows", "sluice/workflows/contract"},
	"sluice/worker":             {"sluice/admission", "sluice/policy", "sluice/workflows", "sluice/workflows/contract", "sluice/activities"},
	"sluice/worker/telemetry":   {},
}

// pkg is what `go list` says of a package. With -test, what a package's tests
// import is under the package `path.test`.
type pkg struct {
	ImportPath string
	Deps       []string
	Standard   bool
}

// list lists the module's packages and everything that they import, tests
// included. It is done once.
func list(t *testing.T) map[string]pkg {
	t.Helper()
	packages, err := listed()
	require.NoError(t, err)
	return packages
}

var listed = sync.OnceValues(func() (map[string]pkg, error) {
	root := filepath.Join("..", "..")
	if err := touch(root); err != nil {
		return nil, err
	}
	list := exec.Command("go", "list", "-test", "-deps", "-json=ImportPath,Deps,Standard", "./...")
	list.Dir = root
	out, err := list.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %w\n%s", err, exit.Stderr)
	} else if err != nil {
		return nil, err
	}
	packages := map[string]pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages[p.ImportPath] = p
	}
})

// touch looks at every source file, so that `go test` runs this test again
// after one has changed: it can't see what `go list` reads.
func touch(root string) error {
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".go" || e.Name() == "go.mod" {
			_, err = os.Stat(path)
		}
		return err
	})
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func TestAdmissionImportsOnlyTheStandardLibrary(t *testing.T) {
	packages := list(t)
	require.Contains(t, packages, "sluice/admission")
	for _, dep := range packages["sluice/admission"].Deps {
		assert.True(t, packages[dep].Standard, "sluice/admission imports %s", dep)
	}
}

func TestLibraryPackagesImportWhatTheyMay(t *testing.T) {
	packages := list(t)
	for path, may := range allowed {
		require.Contains(t, packages, path)
		for _, dep := range packages[path].Deps {
			if within(dep, module) {
				assert.Contains(t, may, dep, "what %s may import", path)
			}
		}
	}
	for path, p := range packages {
		if !within(path, module) || strings.Contains(path, " ") || strings.HasSuffix(path, ".test") {
			continue
		}
		outside := within(path, "sluice/cmd") || within(path, "sluice/examples") || within(path, "sluice/tests")
		_, known := allowed[p.ImportPath]
		assert.True(t, outside || known, "%s is new: say in this test what it may import", path)
	}
}

// TestTheLibraryReachesNoExporter: who uses the library compiles OpenTelemetry's API
// and no more, unless it asks for more.
func TestTheLibraryReachesNoExporter(t *testing.T) {
	packages := list(t)
	otel := func(dep string) bool {
		return within(dep, "go.opentelemetry.io") || within(dep, "github.com/prometheus")
	}
	for path := range allowed {
		if path == "sluice/worker/telemetry" {
			continue
		}
		for _, dep := range packages[path].Deps {
			if !otel(dep) {
				continue
			}
			api := (path == "sluice/activities" || path == "sluice/worker") && !within(dep, "go.opentelemetry.io/otel/sdk") &&
				!within(dep, "go.opentelemetry.io/otel/exporters") && !within(dep, "go.opentelemetry.io/contrib")
			assert.True(t, api && within(dep, "go.opentelemetry.io"), "%s imports %s", path, dep)
		}
	}
}

// TestOnlyTheProgramAndTestsReachTheServer: who uses the library never compiles
// the server, nor does who runs the library's own tests.
func TestOnlyTheProgramAndTestsReachTheServer(t *testing.T) {
	var reaching []string
	for path, p := range list(t) {
		path, _, _ = strings.Cut(path, " ") // as built for a test
		if !within(path, module) || !slices.ContainsFunc(p.Deps, func(dep string) bool { return within(dep, server) }) {
			continue
		}
		reaching = append(reaching, path)
		assert.True(t, within(path, "sluice/cmd/worker") || path == "sluice/cmd/worker.test" || within(path, "sluice/tests"), "%s reaches %s", path, server)
	}
	assert.Contains(t, reaching, "sluice/tests/e2e.test", "the rule is looked at in the right place")
}
