package devserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/schema/sqlite"
	sqlitedriver "modernc.org/sqlite"
	sqlitecode "modernc.org/sqlite/lib"
)

// pragmas hold on every connection to a database file, the server's and ours.
var pragmas = []struct{ name, value string }{
	{"busy_timeout", "2000"}, // ms to wait for somebody who looks into the file
	{"journal_mode", "wal"},  // readers and the writer don't wait for each other
	{"synchronous", "full"},  // a committed transaction is on the disk, not in its cache
}

// database is a locked SQLite file that holds a Temporal server's tables. A nil one
// stands for memory.
type database struct {
	file string // absolute, symbolic links resolved
	lock *fileLock
	once sync.Once // the first of close and keep counts
}

// openDatabase locks a file, and sets it up if it is new. Its errors name the file.
func openDatabase(ctx context.Context, name string) (*database, error) {
	file, err := resolve(name)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(file + ".lock")
	if err != nil {
		return nil, databaseError(name, err)
	}
	held.Store(lock, nil)
	db := &database{file: file, lock: lock}
	if err := db.prepare(ctx); err != nil {
		db.unlock()
		return nil, databaseError(name, err)
	}
	return db, nil
}

// close folds the write-ahead log into the file and unlocks it. The file is whole
// without that, too; folded it can be copied as one.
func (d *database) close() (err error) {
	if d == nil {
		return nil
	}
	d.once.Do(func() {
		defer d.unlock()
		if err = d.checkpoint(); err != nil {
			err = databaseError(d.file, err)
		}
	})
	return err
}

// keep leaves the file locked until the process ends.
func (d *database) keep() { d.once.Do(func() {}) }

// held holds on to locks: of a server that runs while nobody has its value, the lock
// would be collected as garbage, and so unlocked.
var held sync.Map // *fileLock -> nil

func (d *database) unlock() {
	held.Delete(d.lock)
	d.lock.unlock()
}

func (d *database) checkpoint() error {
	conn, err := d.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

// resolve makes one name of all names of a file, since the lock goes by the name.
func resolve(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("database %s: there is no directory %s; make it first", name, filepath.Dir(abs))
	}
	if err != nil {
		return "", fmt.Errorf("database %s: %w", name, err)
	}
	file := filepath.Join(dir, filepath.Base(abs))
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return file, nil
	case err != nil:
		return "", fmt.Errorf("database %s: %w", name, err)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("database %s is not a regular file", name)
	}
	return filepath.EvalSymlinks(file)
}

// prepare makes sure that the file is a Temporal server's, in the modes of pragmas.
func (d *database) prepare(ctx context.Context) error {
	conn, err := d.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	// One transaction: of a process that is killed here, nothing stays.
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var tables, known int
	const count = `SELECT count(*), count(CASE WHEN name IN ('namespaces', 'executions_visibility') THEN 1 END)
		FROM sqlite_master WHERE type = 'table'`
	if err := tx.QueryRowContext(ctx, count).Scan(&tables, &known); err != nil {
		return err
	}
	switch {
	case tables == 0:
		if err := sqlite.SetupSchemaOnDB(schemaTx{tx: tx}); err != nil {
			return fmt.Errorf("can't be set up: %w", err)
		}
	case known != 2:
		return errors.New("is a SQLite database, but not a Temporal server's")
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	// SQLite answers with the mode that it keeps where it can't have the one asked for.
	var mode string
	if err := conn.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("can't be in WAL mode (it stays in mode %s); choose a file on a local disk", mode)
	}
	return d.sameFileAsBefore()
}

// connect opens a connection like the server's, which is closed after use, unlike
// the server's.
func (d *database) connect() (*sql.DB, error) {
	q := url.Values{"mode": {"rwc"}, "_txlock": {"immediate"}}
	for _, p := range pragmas {
		q.Add("_pragma", p.name+"="+p.value)
	}
	conn, err := sql.Open("sqlite", "file:"+uriPath(d.file)+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	conn.SetMaxOpenConns(1) // the pragmas, the transaction and the question about the mode meet on one
	return conn, nil
}

// opened holds which file each name meant when this process first opened it.
var opened sync.Map // file name -> os.FileInfo

// sameFileAsBefore refuses a file that was removed and made anew since this process
// first opened it: the SQLite plugin would go on with its connection to the old
// one, and what it writes there nobody could find.
func (d *database) sameFileAsBefore() error {
	info, err := os.Stat(d.file)
	if err != nil {
		return err
	}
	before, loaded := opened.LoadOrStore(d.file, info)
	if loaded && !os.SameFile(before.(os.FileInfo), info) {
		return errors.New("was replaced since this process opened it; start a new process, or choose another name")
	}
	return nil
}

// schemaTx lets the server's schema be set up within a transaction. Only Exec is
// used for that.
type schemaTx struct {
	sqlplugin.AdminDB
	tx *sql.Tx
}

func (s schemaTx) Exec(stmt string, args ...any) error {
	_, err := s.tx.Exec(stmt, args...)
	return err
}

// uriPath escapes what would end the path in a SQLite URI.
func uriPath(file string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(file)
}

// databaseError names the file, and says in a person's words what SQLite says in its own.
func databaseError(name string, err error) error {
	var busy *lockHeld
	if errors.As(err, &busy) {
		return fmt.Errorf("database %s is in use by another server%s; stop that one or choose another file with --db", name, busy.holder)
	}
	var code *sqlitedriver.Error
	if errors.As(err, &code) {
		switch code.Code() & 0xff { // the primary code, without its extension
		case sqlitecode.SQLITE_NOTADB, sqlitecode.SQLITE_CORRUPT:
			return fmt.Errorf("%s is not a SQLite database, or a damaged one; choose another file with --db", name)
		case sqlitecode.SQLITE_BUSY, sqlitecode.SQLITE_LOCKED:
			return fmt.Errorf("database %s is locked by another process; stop that one or choose another file with --db", name)
		case sqlitecode.SQLITE_READONLY, sqlitecode.SQLITE_CANTOPEN, sqlitecode.SQLITE_PERM:
			return fmt.Errorf("database %s can't be written: %w", name, err)
		}
	}
	return fmt.Errorf("database %s: %w", name, err)
}
