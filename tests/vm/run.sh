#!/bin/bash
# Boots Debian kernels in an emulator and runs the tests of this folder in them:
# do the BPF programs load, attach, and see what they should on each kernel?
#
# usage: run.sh [--refresh] [RELEASE[/ARCH]...]
#
# RELEASE is a Debian release whose cloud kernel is taken, ARCH amd64 or arm64.
# Without any: bullseye (5.10, the oldest supported), bookworm (6.1) and trixie
# (6.12), and bookworm/arm64. Kernels are fetched through apt from the mirror that
# this host uses, kept in ${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}/vm
# and used again; --refresh fetches the newest ones. Nothing is installed from
# them. The emulator and the compilers are installed if missing and allowed (root).
#
# It prints a table of kernels and checks (Verifier: instructions that the verifier
# walked for the costliest program) and which kernels were skipped and why. It ends
# with 1 if a check fails on a kernel, or if no kernel could be tried. The console of
# each guest is kept in the cache, too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CACHE=${INFERSPAN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/inferspan}/vm
STUB=tests/bpf/testdata
# Columns of the table: tests, and what they are called there.
CHECKS=(Load Attach Multi Frames HTTP Losses Exit Nested Capabilities Verifier)
# Seconds for one guest. Emulated and on a busy host it takes some minutes.
LIMIT=${INFERSPAN_VM_TIMEOUT:-900}

say() { printf 'vm: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# cc_of ARCH, qemu_of ARCH: program names.
cc_of() { case $1 in amd64) echo x86_64-linux-gnu-gcc ;; arm64) echo aarch64-linux-gnu-gcc ;; esac; }
qemu_of() { case $1 in amd64) echo qemu-system-x86_64 ;; arm64) echo qemu-system-aarch64 ;; esac; }

# need_tools ARCH: installs what is missing for it; fails with a reason.
need_tools() {
	local packages=() tool package
	while read -r tool package; do
		command -v "$tool" >/dev/null || packages+=("$package")
	done <<-LIST
		cpio cpio
		$(cc_of "$1") $([ "$1" = amd64 ] && echo gcc libc6-dev || echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
		$(qemu_of "$1") $([ "$1" = amd64 ] && echo qemu-system-x86 || echo qemu-system-arm)
	LIST
	[ ${#packages[@]} -gt 0 ] || return 0
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "missing: install ${packages[*]}"
		return 1
	fi
	say "installing ${packages[*]}"
	# shellcheck disable=SC2086 # an entry may name several packages
	if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ${packages[*]}; } >"$CACHE/install.log" 2>&1; then
		echo "installing ${packages[*]} failed, see $CACHE/install.log"
		return 1
	fi
}

# mirrors LABEL: addresses of the host's package sources with that label of a
# release file ("Debian", "Debian-Security").
mirrors() {
	# shellcheck disable=SC2016 # apt's variables
	apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
		awk -v label="$1" '$1 == label && !seen[$2]++ { print $2 }'
}

# fetch RELEASE ARCH FOLDER: puts the newest cloud kernel into FOLDER as vmlinuz and
# version; on failure prints the reason.
fetch() {
	local release=$1 arch=$2 to=$3 apt options keyring uri package
	apt=$CACHE/apt/$release-$arch
	mkdir -p "$apt"/{lists/partial,archives/partial,deb}
	: >"$apt/status"
	keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	options="arch=$arch target=Packages"
	[ ! -e $keyring ] || options+=" signed-by=$keyring"
	{
		for uri in $(mirrors Debian); do echo "deb [$options] $uri $release main"; done
		for uri in $(mirrors Debian-Security); do echo "deb [$options] $uri $release-security main"; done
	} >"$apt/sources.list"
	[ -s "$apt/sources.list" ] || { echo "apt has no Debian mirror configured, or no lists of it yet (apt-get update)"; return 1; }
	options="-qq -o Dir::State=$apt -o Dir::State::lists=$apt/lists -o Dir::State::status=$apt/status
		-o Dir::Cache=$apt -o Dir::Cache::archives=$apt/archives -o Dir::Etc::sourcelist=$apt/sources.list
		-o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
		-o APT::Architecture=$arch -o APT::Architectures=$arch -o APT::Sandbox::User=$(id -un)"
	# One of the sources may be gone (a release without security support): what the
	# others have counts.
	# shellcheck disable=SC2086
	apt-get $options update >"$apt/log" 2>&1 || true
	# shellcheck disable=SC2086
	package=$(apt-cache $options depends "linux-image-cloud-$arch" 2>>"$apt/log" | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
	if [ -z "$package" ]; then
		echo "no linux-image-cloud-$arch in $release: $(grep -E '^[EW]:' "$apt/log" | tail -n 1)"
		return 1
	fi
	rm -rf "$apt/deb" "$apt/root"
	mkdir -p "$apt/deb"
	# shellcheck disable=SC2086
	if ! (cd "$apt/deb" && apt-get $options download "$package") >>"$apt/log" 2>&1; then
		echo "downloading $package: $(grep -E '^[EW]:' "$apt/log" | tail -n 1)"
		return 1
	fi
	# Everything the guest needs is built into these kernels: no modules are kept.
	if ! dpkg-deb -x "$apt"/deb/*.deb "$apt/root" 2>>"$apt/log" || ! cp "$apt"/root/boot/vmlinuz-* "$apt/vmlinuz" 2>>"$apt/log"; then
		echo "unpacking $package: $(tail -n 1 "$apt/log")"
		return 1
	fi
	rm -rf "$to"
	mkdir -p "$to"
	mv "$apt/vmlinuz" "$to/vmlinuz"
	dpkg-deb -f "$apt"/deb/*.deb Version >"$to/version"
	rm -rf "$apt"
}

# build_initramfs ARCH FILE: the test binary as init, the stand-in for libzmq in two
# builds, the C library they are linked with, and the BPF object.
build_initramfs() {
	local arch=$1 root cc build loader lib
	root=$CACHE/root
	rm -rf "$root"
	mkdir -p "$root"
	cc=$(cc_of "$arch")
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go test -c -trimpath -ldflags '-s -w' -o "$root/init" ./tests/vm
	case $arch in
	amd64) cp bpf/tracer_x86_bpfel.o "$root/tracer.o" && loader=/lib64/ld-linux-x86-64.so.2 ;;
	arm64) cp bpf/tracer_arm64_bpfel.o "$root/tracer.o" && loader=/lib/ld-linux-aarch64.so.1 ;;
	esac
	for build in ret tail; do
		mkdir -p "$root/stub/$build"
		"$cc" -O2 -Wall -Werror -fPIC -shared -Wl,-soname,libzmq.so $([ $build = ret ] || echo -DTAIL_CALL) -o "$root/stub/$build/libzmq.so" $STUB/zmqstub.c
		# shellcheck disable=SC2016 # for the loader
		"$cc" -O2 -Wall -Werror -o "$root/stub/$build/driver" $STUB/driver.c "$root/stub/$build/libzmq.so" -Wl,-rpath,'$ORIGIN'
	done
	mkdir -p "$root${loader%/*}" "$root/lib"
	for lib in "${loader##*/}" libc.so.6; do
		cp -L "$("$cc" -print-file-name="$lib")" "$root/lib/$lib"
	done
	[ "${loader%/*}" = /lib ] || cp "$root/lib/${loader##*/}" "$root$loader"
	(cd "$root" && find . -print0 | cpio --quiet --null -o -H newc -R 0:0) | gzip -1 >"$2.new"
	mv "$2.new" "$2"
	rm -rf "$root"
}

# boot ARCH KERNEL INITRAMFS CONSOLE: runs a guest to its end or to the limit.
boot() {
	local machine console
	case $1 in
	amd64) machine="-machine q35 -cpu max" console=ttyS0 ;;
	arm64) machine="-machine virt -cpu cortex-a72" console=ttyAMA0 ;;
	esac
	# One thread for both CPUs: with one each, a CPU of the emulator can run instructions
	# that the other one has patched meanwhile (tracepoints are switched on that way),
	# and the kernel dies of a breakpoint that it no longer knows.
	# A panic ends the guest at once. A kernel that prints no more than errors does
	# not cut the lines of the tests in two.
	# shellcheck disable=SC2086
	timeout --foreground "$LIMIT" "$(qemu_of "$1")" $machine -accel tcg,thread=single -smp 2 -m 1024 \
		-nodefaults -no-user-config -no-reboot -display none -serial stdio -nic none \
		-kernel "$2" -initrd "$3" -append "console=$console loglevel=4 panic=-1 oops=panic random.trust_cpu=on" \
		</dev/null 2>&1 | sed -u 's,\r$,,' >"$4"
}

# result CONSOLE CHECK: ok, FAILED, or "none" when the test did not come to its end.
result() {
	if grep -q "^--- PASS: Test$2 " "$1"; then
		echo ok
	elif grep -q "^--- \(FAIL\|SKIP\): Test$2 " "$1"; then
		echo FAILED
	else
		echo none
	fi
}

main() {
	local refresh='' kernels=() k arch name folder reason console start check r bad tried=0 failed=0
	for k; do
		case $k in
		--refresh) refresh=1 ;;
		-*) die "unknown option $k; usage: run.sh [--refresh] [RELEASE[/ARCH]...]" ;;
		*/amd64 | */arm64) kernels+=("$k") ;;
		*/*) die "$k: the architecture is amd64 or arm64" ;;
		*) kernels+=("$k/amd64") ;;
		esac
	done
	[ ${#kernels[@]} -gt 0 ] || kernels=(bullseye/amd64 bookworm/amd64 trixie/amd64 bookworm/arm64)
	command -v go >/dev/null || die "Go is missing: install the version that go.mod names"
	mkdir -p "$CACHE"
	exec 9>"$CACHE/.lock"
	flock -n 9 || { say "another run is at work, waiting for it"; flock 9; }

	local table=() notes=()
	row() { table+=("$(printf '%s\t' "$@")"); }
	row KERNEL RELEASE "${CHECKS[@]}" SECONDS
	for k in "${kernels[@]}"; do
		name=${k%/*} arch=${k#*/}
		folder=$CACHE/$name-$arch
		if ! reason=$(need_tools "$arch"); then
			notes+=("$k: skipped: $reason")
			continue
		fi
		if [ -n "$refresh" ] || [ ! -s "$folder/version" ]; then
			say "$k: fetching the kernel"
			if ! reason=$(fetch "$name" "$arch" "$folder"); then
				notes+=("$k: skipped: $reason")
				continue
			fi
		fi
		build_initramfs "$arch" "$CACHE/initramfs-$arch"
		say "$k: booting $(cat "$folder/version") (at most $LIMIT s)"
		tried=$((tried + 1)) start=$SECONDS bad='' console=$folder/console
		boot "$arch" "$folder/vmlinuz" "$CACHE/initramfs-$arch" "$console" || bad="the guest did not end by itself within $LIMIT s"
		local cells=()
		for check in "${CHECKS[@]}"; do
			r=$(result "$console" "$check")
			[ "$r" = ok ] || bad=${bad:-"$check"}
			[ "$check$r" != Verifierok ] || r=$(awk '/vm: verified / { print $(NF - 1) }' "$console")
			cells+=("$r")
		done
		grep -q '^vm: end 0$' "$console" || bad=${bad:-"the tests did not end well"}
		! grep -q '^vm: fault: ' "$console" || bad=${bad:-"the kernel reports a fault"}
		row "$(sed -n 's/^vm: kernel //p' "$console")" "$k" "${cells[@]}" $((SECONDS - start))
		while read -r reason; do notes+=("$k: $reason"); done < <(sed -n 's/.*: vm: \(CAP_.*\)/\1/p' "$console")
		if [ -n "$bad" ]; then
			failed=$((failed + 1))
			say "$k: FAILED ($bad); the end of $console:"
			tail -n 60 "$console" >&2
		fi
	done
	printf '%s\n' "${table[@]}" | column -t -s $'\t'
	[ ${#notes[@]} = 0 ] || printf '%s\n' "${notes[@]}"
	[ $tried -gt 0 ] || die "no kernel could be tried"
	[ $failed = 0 ] || die "$failed of $tried kernels failed"
}

trap 'exit 143' TERM
trap 'exit 130' INT
main "$@"
