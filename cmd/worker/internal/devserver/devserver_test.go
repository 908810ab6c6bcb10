package devserver

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	serverlog "go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
	"go.temporal.io/server/common/metrics"
	persistencesql "go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/resolver"

	"sluice/cmd/worker/internal/webui"
)

// childFile, where set, makes this test binary a server on that file, to be killed.
const childFile = "SLUICE_DEVSERVER_CHILD"

func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		child(file)
	}
	os.Exit(m.Run())
}

// child serves the file, starts a workflow, says so, and waits to be killed.
func child(file string) {
	s, err := Start(context.Background(), Options{DBFile: file})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	c, err := client.Dial(client.Options{HostPort: s.HostPort(), Logger: quiet})
	if err == nil {
		err = startGreeting(context.Background(), c, "before-the-kill")
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func greet(_ workflow.Context, name string) (string, error) { return "hello " + name, nil }

func startGreeting(ctx context.Context, c client.Client, id string) error {
	_, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: "greetings"}, greet, id)
	return err
}

// finishGreeting runs a worker until the workflow has ended.
func finishGreeting(t *testing.T, c client.Client, id string) {
	t.Helper()
	w := sdkworker.New(c, "greetings", sdkworker.Options{})
	w.RegisterWorkflow(greet)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got string
	if err := c.GetWorkflow(t.Context(), id, "").Get(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	if got != "hello "+id {
		t.Errorf("workflow %s: %q", id, got)
	}
}

var quiet = sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))

func mustStart(t *testing.T, o Options) *Server {
	t.Helper()
	var logged lockedBuffer
	if o.Log == nil {
		o.Log = &logged
	}
	began := time.Now()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("up after %v at %s", time.Since(began).Round(time.Millisecond), s.HostPort())
	t.Cleanup(func() {
		s.Stop()
		if out := logged.String(); out != "" {
			t.Errorf("a healthy server logged:\n%s", out)
		}
	})
	return s
}

func mustStop(t *testing.T, s *Server) {
	t.Helper()
	began := time.Now()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("down after %v", time.Since(began).Round(time.Millisecond))
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	select {
	case err := <-s.Failed():
		t.Errorf("a server that was only stopped says it failed: %v", err)
	default:
	}
}

func mustDial(t *testing.T, s *Server, namespace string) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: s.HostPort(), Namespace: namespace, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// wantError starts a server that must not start, on one line that says all of parts,
// with nothing logged.
func wantError(t *testing.T, o Options, parts ...string) error {
	t.Helper()
	var logged lockedBuffer
	o.Log = &logged
	s, err := Start(t.Context(), o)
	if err == nil {
		s.Stop()
		t.Fatalf("it started; want an error with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q doesn't say %q", err, part)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
	if s := logged.String(); s != "" {
		t.Errorf("the server logged before the error: %s", s)
	}
	return err
}

func TestMemoryAndWebUI(t *testing.T) {
	stdout := captureStdout(t)
	s := mustStart(t, Options{Namespaces: []string{"default", "other"}})
	c := mustDial(t, s, "other")
	if err := startGreeting(t.Context(), c, "in-memory"); err != nil {
		t.Fatal(err)
	}
	finishGreeting(t, c, "in-memory")

	u, err := webui.Start(t.Context(), webui.Options{TemporalAddress: s.HostPort()})
	if err != nil {
		t.Fatal(err)
	}
	if body := get(t, u.URL()+"/"); !strings.Contains(body, "<!doctype html>") && !strings.Contains(body, "<!DOCTYPE html>") {
		t.Errorf("GET / isn't the UI: %.200s", body)
	}
	if body := get(t, u.URL()+"/api/v1/namespaces"); !strings.Contains(body, `"other"`) {
		t.Errorf("the UI server's namespaces: %.500s", body)
	}
	addr := strings.TrimPrefix(u.URL(), "http://")
	var port int
	fmt.Sscanf(addr, "127.0.0.1:%d", &port)
	_, err = webui.Start(t.Context(), webui.Options{TemporalAddress: s.HostPort(), Port: port})
	if want := "port " + addr + " is taken; choose another with --ui-port or 0 for a free one"; err == nil || err.Error() != want {
		t.Errorf("a second UI on the port: %v", err)
	}
	if err := u.Stop(); err != nil {
		t.Error(err)
	}
	mustStop(t, s)
	if out := stdout(); out != "" {
		t.Errorf("standard output got %q", out)
	}
}

func TestAFileKeepsEverything(t *testing.T) {
	// A name with all that means something in a SQLite URI, by way of a link.
	dir := t.TempDir()
	file := filepath.Join(dir, "odd ?name#50%3f.db")
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}

	s := mustStart(t, Options{DBFile: file})
	c := mustDial(t, s, "default")
	if err := startGreeting(t.Context(), c, "kept"); err != nil {
		t.Fatal(err)
	}
	id := namespaceID(t, c)
	checkPragmas(t, s)
	wantError(t, Options{DBFile: file}, file, "in use by another server", "--db")
	wantError(t, Options{DBFile: link}, link, "in use by another server")
	mustStop(t, s)
	if info, err := os.Stat(file + "-wal"); err == nil && info.Size() > 0 {
		t.Errorf("the write-ahead log still has %d bytes after Stop", info.Size())
	}

	s = mustStart(t, Options{DBFile: link, Namespaces: []string{"default", "second"}}) // on another port
	c = mustDial(t, s, "default")
	if again := namespaceID(t, c); again != id {
		t.Errorf("the namespace was made anew: %s, was %s", again, id)
	}
	finishGreeting(t, c, "kept")
	namespaceID(t, mustDial(t, s, "second"))
	mustStop(t, s)

	// Replaced behind the name: the plugin's connection would go to the old one.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantError(t, Options{DBFile: file}, file, "was replaced")
}

func TestAKilledServerLosesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "killed.db")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFile+"="+file)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the child says %q", line)
	}
	wantError(t, Options{DBFile: file}, file, "in use by another server", fmt.Sprintf("process %d", cmd.Process.Pid))
	cmd.Process.Kill()
	cmd.Wait()

	s := mustStart(t, Options{DBFile: file, DefaultDynamicConfig: true})
	finishGreeting(t, mustDial(t, s, "default"), "before-the-kill")
	mustStop(t, s)
}

func TestAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := filepath.Join(t.TempDir(), "new.db")
	err = wantError(t, Options{Port: l.Addr().(*net.TCPAddr).Port, DBFile: file},
		"port "+l.Addr().String()+" is taken; choose another with --port or 0 for a free one")
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v doesn't wrap EADDRINUSE", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the database was made all the same")
	}
}

func TestWhatCannotBeServed(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a database\n"), 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign.db")
	locked := filepath.Join(dir, "locked.db")
	for _, file := range []string{foreign, locked} {
		execute(t, file, "CREATE TABLE recipes (name TEXT)")
	}
	conn := execute(t, locked, "BEGIN EXCLUSIVE")
	defer conn.Exec("ROLLBACK")

	for _, c := range []struct {
		name  string
		o     Options
		parts []string
	}{
		{"text", Options{DBFile: text}, []string{text, "is not a SQLite database"}},
		{"somebody else's database", Options{DBFile: foreign}, []string{foreign, "not a Temporal server's"}},
		{"locked through SQLite", Options{DBFile: locked}, []string{locked, "is locked by another process"}},
		{"no directory", Options{DBFile: filepath.Join(dir, "no", "such.db")}, []string{"no directory " + filepath.Join(dir, "no")}},
		{"a directory", Options{DBFile: dir}, []string{dir, "not a regular file"}},
		{"every address", Options{IP: "0.0.0.0"}, []string{"0.0.0.0", "loopback"}},
		{"not an address", Options{IP: "localhost"}, []string{"localhost", "127.0.0.1"}},
		{"port", Options{Port: 65536}, []string{"65536", "65535"}},
		{"namespace", Options{Namespaces: []string{""}}, []string{"namespace"}},
	} {
		t.Run(c.name, func(t *testing.T) { wantError(t, c.o, c.parts...) })
	}
}

func TestAnEmptyFileIsSetUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "empty.db")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db, err := openDatabase(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALockOutlivesItsValue: a server goes on when nobody holds its value any more,
// and so does its lock.
func TestALockOutlivesItsValue(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no lock here")
	}
	file := filepath.Join(t.TempDir(), "held.db")
	db, err := openDatabase(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	forgotten := weak.Make(db)
	db = nil
	for forgotten.Value() != nil {
		runtime.GC()
	}
	for range 10 {
		runtime.GC() // what the value alone referred to, which is closed some time later
		runtime.Gosched()
	}
	if _, err = openDatabase(t.Context(), file); err == nil || !strings.Contains(err.Error(), "in use by another server") {
		t.Fatalf("a second server on the file: %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	for _, patience := range []time.Duration{-1, 5 * time.Millisecond} { // before it, and in the middle
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if s, err := Start(ctx, Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Start with %v: %v, %v", patience, s, err)
		}
		cancel()
	}
}

func TestWhatTheServerCallsFatalIsAnError(t *testing.T) {
	var out bytes.Buffer
	l := newServerLog(&out)
	l.Warn("careful", tag.NewInt("n", 7))
	if err := l.guard(func() error { l.Fatal("Failed to start gRPC listener", tag.Error(syscall.EADDRINUSE)); return nil }); !errors.Is(err, errListen) {
		t.Errorf("guard: %v", err)
	}
	if err := <-l.failed; !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("failed: %v", err)
	}
	if err := l.guard(func() error { panic("no") }); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("guard of a panic: %v", err)
	}
	if err := l.guard(func() error { return io.EOF }); err != io.EOF {
		t.Errorf("guard of an error: %v", err)
	}
	if err := l.guard(func() error { return nil }); err != nil {
		t.Errorf("guard of success: %v", err)
	}
	for _, part := range []string{"level=WARN msg=careful n=7", "level=ERROR"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the log lacks %q: %s", part, out.String())
		}
	}
}

// checkPragmas asks the server's own connection, and the file.
func checkPragmas(t *testing.T, s *Server) {
	t.Helper()
	// An equal configuration gets the connection that the server has.
	admin, err := persistencesql.NewSQLAdminDB(sqlplugin.DbKindUnknown, storeConfig(s.db), resolver.NewNoopResolver(), serverlog.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := admin.Exec(`CREATE TABLE probe AS SELECT
		(SELECT journal_mode FROM pragma_journal_mode) AS journal_mode,
		(SELECT synchronous FROM pragma_synchronous) AS synchronous,
		(SELECT timeout FROM pragma_busy_timeout) AS busy_timeout`); err != nil {
		t.Fatal(err)
	}
	conn, err := s.db.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var mode string
	var synchronous, busy int
	if err := conn.QueryRow("SELECT journal_mode, synchronous, busy_timeout FROM probe").Scan(&mode, &synchronous, &busy); err != nil {
		t.Fatal(err)
	}
	if mode != "wal" || synchronous != 2 || busy != 2000 {
		t.Errorf("the server's connection has journal_mode %s, synchronous %d, busy_timeout %d; want wal, 2 (FULL), 2000", mode, synchronous, busy)
	}
	header := make([]byte, 20)
	f, err := os.Open(s.db.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, header); err != nil {
		t.Fatal(err)
	}
	if header[18] != 2 || header[19] != 2 { // SQLite file format, section 1.3.3: 2 is WAL
		t.Errorf("the file's header says format %d/%d; want 2/2, WAL", header[18], header[19])
	}
}

func namespaceID(t *testing.T, c client.Client) string {
	t.Helper()
	resp, err := c.WorkflowService().GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	if err != nil || resp.GetServerVersion() == "" {
		t.Fatalf("system info: %v, %v", resp, err)
	}
	r, err := c.WorkflowService().ListNamespaces(t.Context(), &workflowservice.ListNamespacesRequest{PageSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range r.GetNamespaces() {
		if n.GetNamespaceInfo().GetName() == "default" {
			return n.GetNamespaceInfo().GetId()
		}
	}
	t.Fatal("there is no namespace default")
	return ""
}

func execute(t *testing.T, file, statement string) *sql.DB {
	t.Helper()
	conn, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetMaxOpenConns(1)
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Exec(statement); err != nil {
		t.Fatal(err)
	}
	return conn
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s: %.300s", url, resp.Status, body)
	}
	return string(body)
}

// captureStdout diverts standard output; the function that it returns ends that and
// gives what was written.
func captureStdout(t *testing.T) func() string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = w
	got := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		got <- string(b)
	}()
	var once sync.Once
	var out string
	end := func() string {
		once.Do(func() {
			os.Stdout = before
			w.Close()
			out = <-got
			r.Close()
		})
		return out
	}
	t.Cleanup(func() { end() })
	return end
}

// lockedBuffer is a log that several goroutines may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestTheWorkersExporterIsNotTheServers: the server leaves OTEL_TRACES_EXPORTER to the
// workers, whatever it says; by itself it doesn't start with most values.
func TestTheWorkersExporterIsNotTheServers(t *testing.T) {
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	environment.Lock() // one that another test gave up may still be made
	got := os.Getenv("OTEL_TRACES_EXPORTER")
	environment.Unlock()
	if got != "console" {
		t.Errorf("OTEL_TRACES_EXPORTER is %q afterwards", got)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
