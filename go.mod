module inferspan

go 1.26
