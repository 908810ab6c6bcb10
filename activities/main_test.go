package activities

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the package where a test leaves a goroutine behind: gates that
// are closed, and waits that ended, leave none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
