// Package api keeps the exported API of the library packages as text under
// testdata, so that a change of it is a visible diff. After a change that is
// meant:
//
//	go test ./tests/api -update
package api

import (
	"bytes"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the API as it is to testdata")

// libraries are the packages that others import. Of generated code only the
// names are kept: what they mean is in admission.proto.
var libraries = []struct {
	path      string
	generated bool
}{
	{path: "admission"}, {path: "policy"}, {path: "workflows"}, {path: "workflows/contract", generated: true}, {path: "activities"}, {path: "worker"}, {path: "worker/telemetry"},
}

func TestAPI(t *testing.T) {
	for _, library := range libraries {
		t.Run(library.path, func(t *testing.T) {
			p := load(t, library.path)
			var now string
			if library.generated {
				now = names(p)
			} else {
				now = declarations(t, p)
			}
			file := filepath.Join("testdata", strings.ReplaceAll(library.path, "/", "_")+".txt")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(now), 0o644))
				return
			}
			kept, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, string(kept), now, "the exported API has changed; if that is meant: go test ./tests/api -update")
		})
	}
}

// library is a package with what is not exported taken out.
type library struct {
	*doc.Package
	files *token.FileSet
}

func load(t *testing.T, path string) library {
	t.Helper()
	dir := filepath.Join("..", "..", path)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(fset, files, "sluice/"+path)
	require.NoError(t, err)
	return library{p, fset}
}

// declarations are the package's exported declarations, in the order of their
// names, without comments and bodies.
func declarations(t *testing.T, p library) string {
	t.Helper()
	var out strings.Builder
	show := func(node ast.Node) {
		var buf bytes.Buffer
		require.NoError(t, (&printer.Config{Mode: printer.TabIndent, Tabwidth: 8}).Fprint(&buf, p.files, node))
		var lines []string
		for line := range strings.Lines(buf.String()) {
			if words := strings.Fields(line); len(words) > 0 { // how columns stand depends on comments
				indent := line[:len(line)-len(strings.TrimLeft(line, "\t"))]
				lines = append(lines, indent+strings.Join(words, " "))
			}
		}
		out.WriteString(strings.Join(lines, "\n") + "\n\n")
	}
	values := func(list []*doc.Value) {
		for _, v := range list {
			show(bare(v.Decl))
		}
	}
	functions := func(list []*doc.Func) {
		for _, f := range list {
			f.Decl.Doc, f.Decl.Body = nil, nil
			show(f.Decl)
		}
	}
	out.WriteString("package " + p.Name + "\n\n")
	values(p.Consts)
	values(p.Vars)
	functions(p.Funcs)
	for _, of := range p.Types {
		show(bare(of.Decl))
		values(of.Consts)
		values(of.Vars)
		functions(of.Funcs)
		functions(of.Methods)
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// bare takes the comments off a declaration.
func bare(d *ast.GenDecl) *ast.GenDecl {
	d.Doc = nil
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			n.Doc, n.Comment = nil, nil
		case *ast.ValueSpec:
			n.Doc, n.Comment = nil, nil
		case *ast.TypeSpec:
			n.Doc, n.Comment = nil, nil
		}
		return true
	})
	return d
}

// names are the package's exported names, a method after its type.
func names(p library) string {
	var all []string
	values := func(list []*doc.Value) {
		for _, v := range list {
			all = append(all, v.Names...)
		}
	}
	functions := func(of string, list []*doc.Func) {
		for _, f := range list {
			all = append(all, of+f.Name)
		}
	}
	values(p.Consts)
	values(p.Vars)
	functions("", p.Funcs)
	for _, of := range p.Types {
		all = append(all, of.Name)
		values(of.Consts)
		values(of.Vars)
		functions("", of.Funcs)
		functions(of.Name+".", of.Methods)
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !token.IsExported(name) })
	slices.Sort(all)
	return "package " + p.Name + "\n\n" + strings.Join(slices.Compact(all), "\n") + "\n"
}
