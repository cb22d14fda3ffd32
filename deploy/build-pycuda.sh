#!/bin/sh
# Builds a wheel of pycuda on a host with nvcc, for hosts that have a driver but no toolkit.
#
#   deploy/build-pycuda.sh [FOLDER]            writes FOLDER/pycuda-*.whl (default: wheels)
#   PYTHON=python3.12 deploy/build-pycuda.sh   for another Python: the wheel fits that one only
#
# No GPU and no driver are needed here: a library of empty functions takes libcuda's place while linking.
set -eu

folder=${1:-wheels}
python=${PYTHON:-python3}
nvcc=$(command -v nvcc || true)
if [ -z "$nvcc" ] && [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
fi
[ -n "$nvcc" ] || { echo "build-pycuda: no nvcc: install the CUDA toolkit, or set CUDA_HOME" >&2; exit 1; }

# nvcc may be a script that calls the real one: it knows where it is itself.
root=$("$nvcc" --dryrun -x cu /dev/null -o /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)
root=${root:-$(dirname "$(dirname "$nvcc")")}
[ -f "$root/include/cuda.h" ] || {
    echo "build-pycuda: $root/include has no cuda.h: install the toolkit's headers" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Of the names that cuda.h declares: without them the linker would not note that libcuda is needed.
"${CC:-cc}" -E -P -x c "$root/include/cuda.h" | grep -oE '\bcu[A-Z][A-Za-z0-9_]* *\(' | tr -d ' (' |
    sort -u | sed 's/.*/void &(void) {}/' > "$work/cuda.c"
"${CC:-cc}" -shared -fPIC -o "$work/libcuda.so" -Wl,-soname,libcuda.so.1 "$work/cuda.c"
"$python" -m pip download --quiet --no-deps --no-binary pycuda --dest "$work" "pycuda>=2024.1"
tar -xzf "$work"/pycuda-*.tar.gz -C "$work"
source=$(find "$work" -mindepth 1 -maxdepth 1 -type d -name 'pycuda-*')
cat > "$source/siteconf.py" <<EOF
CUDA_ROOT = "$root"
CUDA_INC_DIR = ["$root/include"]
CUDADRV_LIB_DIR = ["$work"]
# Nothing here needs it, and the wheel is for hosts without the toolkit's libraries.
CUDA_ENABLE_CURAND = False
EOF
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" "$source"
ls "$folder"/pycuda-*.whl
