package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileSize bounds a policy file: 1 MiB.
const maxFileSize = 1 << 20

// Load reads a policy file. What is wrong with its content is a *[FaultError];
// a file that can't be read is the error of the operating system.
func Load(path string) (*Policy, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads a policy in YAML; name is what faults call it. The error is a
// *[FaultError] with every fault, in order of place. One document of at most
// 1 MiB; anchors, aliases and tags are not supported.
func Parse(name string, data []byte) (*Policy, error) {
	refuse := func(f Fault) (*Policy, error) {
		return nil, &FaultError{File: name, Faults: []Fault{f}}
	}
	if len(data) > maxFileSize {
		return refuse(Fault{Message: "too large", Allowed: fmt.Sprintf("at most %d bytes", maxFileSize)})
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return refuse(Fault{Message: "the file is empty", Allowed: `a mapping with the keys on_invalid, gates; "gates: []" gates nothing`})
	} else if err != nil {
		return refuse(syntaxFault(err))
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return refuse(Fault{Line: second.Line, Column: second.Column, Message: "a second document begins here", Allowed: "one document"})
	} else if !errors.Is(err, io.EOF) {
		return refuse(syntaxFault(err))
	}
	if len(document.Content) != 1 {
		return refuse(Fault{Message: "the file has no content", Allowed: "a mapping with the keys on_invalid, gates"})
	}
	return readPolicy(name, document.Content[0])
}

// syntaxFault takes the line out of the YAML library's message.
func syntaxFault(err error) Fault {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	fault := Fault{Message: "not valid YAML: " + text}
	rest, found := strings.CutPrefix(text, "line ")
	if !found {
		return fault
	}
	number, message, found := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(number)
	if !found || err != nil {
		return fault
	}
	return Fault{Line: line, Column: 1, Message: "not valid YAML: " + message}
}
