//go:build unix

package devserver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileLock is held by an open file, so it ends with the process in any case.
type fileLock struct{ f *os.File }

// lockHeld is a lock that somebody else holds; holder is empty or " (process 123)".
type lockHeld struct{ holder string }

func (e *lockHeld) Error() string { return "locked" + e.holder }

// lockFile locks a file of its own beside the database. SQLite's locks on the
// database itself are left alone: closing any descriptor of it would drop them.
func lockFile(name string) (*fileLock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		held := &lockHeld{holder: readHolder(f)}
		f.Close()
		return nil, held
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	// For the message of whoever comes next; the lock doesn't depend on it.
	if f.Truncate(0) == nil {
		fmt.Fprintln(f, os.Getpid())
	}
	return &fileLock{f}, nil
}

func (l *fileLock) unlock() { l.f.Close() }

func readHolder(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}
