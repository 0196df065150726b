package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestNVMLBinding: only gpu/nvml uses the binding of NVML, which needs cgo, whatever the
// build tags of a file.
func TestNVMLBinding(t *testing.T) {
	const binding, home = "github.com/NVIDIA/go-nvml", "gpu/nvml"
	found := false
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if !strings.HasPrefix(name, binding) {
				continue
			}
			if dir, err := filepath.Rel("../..", filepath.Dir(path)); err != nil || filepath.ToSlash(dir) != home {
				t.Errorf("%s imports %s: only %s does", path, name, home)
			}
			found = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		t.Errorf("nothing imports %s: is the test of use?", binding)
	}
}
