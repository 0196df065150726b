package target

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const tokenizerFile = "tokenizer.json"

// tokenizer finds the tokenizer.json that the engine uses: in the directory that
// the configuration names, or in the snapshot of the Hugging Face cache. The path
// leads through the root of a process of the engine; "" if there is none.
func (s *scan) tokenizer(g []*proc) string {
	for _, p := range g {
		if p.Role != RoleCore && p.Role != RoleAPIServer && p.Role != RoleLauncher && p.Role != RoleOffline && p.Role != RoleDetokenizer {
			continue
		}
		name, revision := p.eng.tokenizer(p)
		if name == "" {
			continue
		}
		for _, dir := range s.modelDirs(p.PID, name, revision) {
			if full, err := s.fs.Resolve(p.PID, path.Join(dir, tokenizerFile)); err == nil {
				return s.fs.InRoot(p.PID, full)
			}
		}
	}
	return ""
}

func firstOf(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

var (
	hubName = regexp.MustCompile(`^[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)?$`)
	commit  = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// modelDirs returns where a model may lie in the root of a process.
func (s *scan) modelDirs(pid int, name, revision string) []string {
	if path.IsAbs(name) {
		return []string{name}
	}
	var dirs []string
	if cwd, err := os.Readlink(s.fs.Path(pid, "cwd")); err == nil && path.IsAbs(cwd) {
		dirs = append(dirs, path.Join(cwd, name))
	}
	if !hubName.MatchString(name) || strings.Contains(name, "..") {
		return dirs
	}
	env, err := s.fs.Env(pid, "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
	if err != nil {
		return dirs
	}
	var hub string
	switch {
	case env["HF_HUB_CACHE"] != "":
		hub = env["HF_HUB_CACHE"]
	case env["HUGGINGFACE_HUB_CACHE"] != "":
		hub = env["HUGGINGFACE_HUB_CACHE"]
	case env["HF_HOME"] != "":
		hub = path.Join(env["HF_HOME"], "hub")
	case env["XDG_CACHE_HOME"] != "":
		hub = path.Join(env["XDG_CACHE_HOME"], "huggingface/hub")
	default:
		hub = path.Join(firstOf(env["HOME"], "/root"), ".cache/huggingface/hub")
	}
	repo := path.Join(hub, "models--"+strings.ReplaceAll(name, "/", "--"))
	rev := firstOf(revision, "main")
	if commit.MatchString(rev) {
		return append(dirs, path.Join(repo, "snapshots", rev))
	}
	if f, err := s.fs.OpenInRoot(pid, path.Join(repo, "refs", rev)); err == nil {
		b, err := io.ReadAll(io.LimitReader(f, 64))
		f.Close()
		if id := strings.TrimSpace(string(b)); err == nil && commit.MatchString(id) {
			return append(dirs, path.Join(repo, "snapshots", id))
		}
	}
	return dirs
}

// OpenTokenizer opens the file that e.Tokenizer names, resolving it again in the
// root of the process so that no symbolic link leads out of it.
func OpenTokenizer(e *Engine) (*os.File, error) { return Finder{}.OpenTokenizer(e) }

// OpenTokenizer is the method form of the function OpenTokenizer.
func (f Finder) OpenTokenizer(e *Engine) (*os.File, error) {
	i := slices.IndexFunc(e.Processes, func(p Process) bool {
		return strings.HasPrefix(e.Tokenizer, f.Proc.InRoot(p.PID, "/")+"/")
	})
	if e.Tokenizer == "" || i < 0 {
		return nil, fmt.Errorf("opening the tokenizer of engine %d: %w", e.ID, os.ErrNotExist)
	}
	pid := e.Processes[i].PID
	rel, err := filepath.Rel(f.Proc.InRoot(pid, "/"), e.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("opening the tokenizer of engine %d: %w", e.ID, err)
	}
	return f.Proc.OpenInRoot(pid, rel)
}
