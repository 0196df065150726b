// Package cache says where tests keep what they install or build outside the repository.
package cache

import (
	"fmt"
	"os"
	"path/filepath"
)

// Dir is $INFERSPAN_CACHE, else inferspan in the user's cache folder. It may not exist
// yet. The scripts that install engines and interpreters use the same.
func Dir() (string, error) {
	if dir := os.Getenv("INFERSPAN_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w", err)
	}
	return filepath.Join(dir, "inferspan"), nil
}
