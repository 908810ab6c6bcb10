package loopback

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails the package where a test leaves a goroutine behind: a provider
// that is closed has none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
