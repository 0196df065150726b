package vllm

// TableStructs gives the field lists that the table has for a version.
func TableStructs(version string) (map[string][]string, error) {
	t, err := loadTable()
	if err != nil {
		return nil, err
	}
	s, _, _ := t.lookup(version)
	return s, nil
}
