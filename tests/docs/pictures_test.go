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

// mostPicture keeps a clone small, in bytes.
const mostPicture = 200 << 10

var picture = regexp.MustCompile(`!\[([^\]]*)\]\(([^)]+)\)`)

// TestPictures: each that a page shows is there, small, and described in words.
func TestPictures(t *testing.T) {
	seen := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		page, err := os.ReadFile(path)
		for _, found := range picture.FindAllStringSubmatch(string(page), -1) {
			if strings.Contains(found[2], "://") {
				continue
			}
			seen++
			assert.NotEmpty(t, found[1], "%s: %s has no words for who can't see it", path, found[2])
			file, err := os.Stat(filepath.Join(filepath.Dir(path), found[2]))
			require.NoError(t, err)
			assert.LessOrEqual(t, file.Size(), int64(mostPicture), found[2])
		}
		return err
	}))
	assert.Positive(t, seen)
}
