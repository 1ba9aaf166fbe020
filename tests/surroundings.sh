# Read by scripts of this folder: what a person, a module or a launcher around them has set for MPI programs must not count.
# A script that goes on inside namespaces (its first argument says so) has set its own.

if [ "${1:-}" != inside ]; then
    steering='^(STILLWIRE_|FI_|PMI|PRTE_|OMPI_|HYDRA_|HYDI_|MPI_LOCAL|MPIR_|MPICH_|I_MPI_|MPI4PY_|PYTHON)'
    for name in $(compgen -e | grep -E "$steering" | grep -vE '^(STILLWIRE_TEST_.*|STILLWIRE_PROVIDER)$' || true); do
        unset "$name"
    done
    libraries=
    IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
    for folder in "${folders[@]}"; do
        found=$(ls "$folder"/lib{mpi,mpi_abi,mpich,fabric,ucp}.so* 2>/dev/null || true)
        [ -n "$found" ] || libraries+=${libraries:+:}$folder
    done
    [ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH=$libraries
fi
