package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"sluice/cmd/worker/internal/child"
	"sluice/cmd/worker/internal/devserver"
)

// serverOrder is what the server's process reads first from its standard input.
type serverOrder struct {
	IP   string `json:"ip"`
	Port int    `json:"port"` // 0: a free one
	DB   string `json:"db"`
}

// Size is how much a process has open.
type Size struct {
	Files      int `json:"files"` // -1: not known on this system
	Goroutines int `json:"goroutines"`
}

// Serve is the server's process. It says on stdout where it listens, then, for each
// further line of stdin, how large it is, until stdin ends.
func Serve(stdin io.Reader, stdout, stderr io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	var o serverOrder
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	s, err := devserver.Start(context.Background(), devserver.Options{IP: o.IP, Port: o.Port, DBFile: o.DB, Log: stderr})
	if err != nil {
		return err
	}
	go func() {
		if err := <-s.Failed(); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1) // the soak sees that it ended by itself
		}
	}()
	if _, err := fmt.Fprintln(stdout, s.HostPort()); err != nil {
		return err
	}
	for {
		if _, err := in.ReadBytes('\n'); err != nil {
			return s.Stop()
		}
		if err := json.NewEncoder(stdout).Encode(Size{Files: openFiles(), Goroutines: runtime.NumGoroutine()}); err != nil {
			return err
		}
	}
}

func openFiles() int {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		if files, err := os.ReadDir(dir); err == nil {
			return len(files) - 1 // that of the directory itself
		}
	}
	return -1
}

// server is that process, seen from the soak.
type server struct {
	*child.Process
	address string
}

func startServer(ctx context.Context, program []string, o serverOrder, stderr io.Writer) (*server, error) {
	process, err := child.Start(program, o, stderr)
	if err != nil {
		return nil, fmt.Errorf("the Temporal server: %w", err)
	}
	address, err := process.Line(ctx)
	if err != nil {
		process.Kill()
		return nil, fmt.Errorf("the Temporal server: %w", err)
	}
	return &server{process, address}, nil
}

// size asks how large the process is.
func (s *server) size(ctx context.Context) (size Size, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	line, err := s.Ask(ctx, "size")
	if err != nil {
		return size, err
	}
	err = json.Unmarshal([]byte(line), &size)
	return size, err
}
