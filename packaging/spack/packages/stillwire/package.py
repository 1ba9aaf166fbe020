# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack.package import *


class Stillwire(Package):
    """A communication layer for parallel programs with checkpoints built in: unmodified MPI programs are
    checkpointed, killed and restarted, without root."""

    license("MIT OR Apache-2.0")

    # The recipe builds a checked-out tree: `spack dev-build stillwire@main`.
    version("main")

    variant("s3", default=True, description="Copies of checkpoints in object stores that speak S3")
    variant("mpich", default=True, description="Bring an MPICH whose libfabric loads the provider")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    depends_on("mpich@4.2: device=ch4 netmod=ofi", type="run", when="+mpich")

    conflicts("platform=darwin", msg="Stillwire runs on Linux")
    requires("target=x86_64:", msg="Stillwire is tested on x86-64")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        features = [] if spec.satisfies("+s3") else ["--no-default-features"]
        cargo("build", "--release", "--locked", "--package", "stillwire", "--package", "stillwire-provider", *features)
        mkdirp(prefix.bin, prefix.lib, prefix.include)
        install("target/release/stillwire", prefix.bin)
        install("target/release/libstillwire_fi.so", prefix.lib)
        install("include/stillwire_component.h", prefix.include)
        Executable(prefix.bin.stillwire)("install-completions", "--prefix", prefix)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.stillwire)("demo", "--native", "--json")
