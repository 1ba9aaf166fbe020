//! Errors of a measurement.

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A measuring process could not be started.
    #[error("a measuring process could not be started: {0}; check the limits of processes and memory")]
    Start(std::io::Error),
    /// A measuring process ended or spoke out of turn.
    #[error("measuring process {role}: {what}; its standard error says why")]
    Worker {
        /// Its task.
        role: &'static str,
        /// The failure.
        what: &'static str,
    },
    /// A measuring process speaks another version of the conversation, or the pipe broke.
    #[error("talking with a measuring process: {0}")]
    Talk(#[from] serde_json::Error),
    /// The pipe to a measuring process broke.
    #[error("the pipe to a measuring process broke: {0}")]
    Pipe(#[from] std::io::Error),
    /// A socket could not be opened.
    #[error("a rail could not be opened: {0}")]
    Driver(#[from] drivers::DriverError),
    /// There is no RDMA device.
    #[error(
        "no RDMA device to measure: /sys/class/infiniband has none; `rdma link` lists them, and the module of the device has to be loaded"
    )]
    NoRdmaDevice,
    /// There are no two network namespaces for AF_XDP.
    #[error(
        "no network namespaces to measure AF_XDP in: {what}; run this as root, with iproute2 installed (a namespace of one's own needs \
         CAP_SYS_ADMIN, devices CAP_NET_ADMIN, AF_XDP itself CAP_NET_RAW and CAP_BPF, all of them on the host)"
    )]
    NoNamespaces {
        /// The missing facility, or the failure.
        what: String,
    },
    /// An endpoint could not be opened, connected, frozen or closed.
    #[error("an endpoint failed: {0}")]
    Endpoint(#[from] endpoint::EndpointError),
    /// A message was refused by something else than back-pressure.
    #[error("a send was refused: {0}")]
    Send(#[from] transport::SendError),
    /// A receive was refused.
    #[error("a receive was refused: {0}")]
    Receive(#[from] transport::matching::MatchError),
    /// A frozen port could not be dumped.
    #[error("a dump failed: {0}")]
    Dump(#[from] nic_freeze::DumpError),
    /// The sources to build from are not there.
    #[error(
        "no sources at {path}: this program was built there; build the program `bench` yourself, with and without \
         RUSTFLAGS=\"--cfg uncheckpointable\", and name both (--with FILE --without FILE)"
    )]
    NoSources {
        /// Where they were looked for.
        path: std::path::PathBuf,
    },
    /// Cargo failed.
    #[error("cargo could not build the program to measure ({what}); its standard error says why")]
    Build {
        /// The error of cargo or the system.
        what: String,
    },
    /// A program is another build than the requested one.
    #[error(
        "{path} is not a build {expected} checkpoint support: swap --with and --without, or build it again"
    )]
    WrongBuild {
        /// Which program.
        path: std::path::PathBuf,
        /// "with" or "without".
        expected: &'static str,
    },
    /// Links can be handed over only where there are two rails.
    #[error("--handover needs --rails auto: with {rails} alone there is no other rail to hand links to")]
    OneRail {
        /// The requested value.
        rails: &'static str,
    },
    /// A measured process could not be captured.
    #[error("a capture failed: {0}")]
    Capture(#[from] process::capture::CaptureError),
    /// An image could not be restored.
    #[error("a restore failed: {0}")]
    Restore(String),
    /// CRIU did not do the requested work.
    #[error("{path}: {what}; leave --criu out to measure without it")]
    Criu {
        /// The program.
        path: std::path::PathBuf,
        /// CRIU's message, or the missing part.
        what: String,
    },
    /// A delta could not be made or applied.
    #[error("a delta failed: {0}")]
    Delta(#[from] store::delta::DeltaError),
    /// Packets could not be written or read.
    #[error("packets failed: {0}")]
    Packets(#[from] store::packets::PacketsError),
    /// A series of checkpoints could not be kept.
    #[error("a series of checkpoints failed: {0}")]
    Store(#[from] store::StoreError),
    /// MPI stacks could not be measured.
    #[error(transparent)]
    Mpi(#[from] crate::mpi::MpiError),
    /// A library that is measured beside ours cannot be used.
    #[error("{path}: {what}; name the library itself, such as libisal.so.2, or leave --isal out")]
    Library {
        /// The library.
        path: std::path::PathBuf,
        /// The fault.
        what: String,
    },
    /// A protector failed.
    #[error("a protector failed: {0}")]
    Protector(protector::ProtectorError),
    /// A job did not do its work.
    #[error(
        "a job could not be measured: {what}; `stillwire doctor` says what jobs need here, and cc has to be there"
    )]
    Job {
        /// The failure.
        what: String,
    },
    /// The launcher is missing, which starts the jobs that are measured.
    #[error(
        "the launcher {path} is missing, which starts the jobs that are measured; build it beside this program (cargo build --release --package stillwire \
         --package stillwire-provider), or name it in STILLWIRE_BIN"
    )]
    NoLauncher {
        /// Where it was looked for.
        path: std::path::PathBuf,
    },
    /// A signal has stopped it.
    #[error("it was stopped")]
    Stopped,
    /// No way that parity can take.
    #[error(transparent)]
    Shape(#[from] protector::NoSuchShape),
    /// More may be lost than there are.
    #[error("{scheme} needs at least {needed} nodes, {nodes} were named with --nodes")]
    Nodes {
        /// The scheme that protects nodes.
        scheme: String,
        /// How many there are.
        nodes: usize,
        /// How many there must be.
        needed: usize,
    },
    /// A code that cannot be.
    #[error(transparent)]
    Code(#[from] ::parity::CodeError),
    /// A file could not be written.
    #[error("{path} could not be written: {error}; name a file in a folder that exists")]
    Write {
        /// Which file.
        path: std::path::PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A message arrived with other bytes than were sent.
    #[error(
        "message {tag} arrived with other bytes than were sent: a fault of this program, of the memory, or of a NIC"
    )]
    Altered {
        /// Which.
        tag: u64,
    },
    /// A port is used that was closed for a move, and has not come back from it.
    #[error("the port of rank {rank} is between two NICs: a fault of this program; please report it")]
    Unmoved {
        /// Whose.
        rank: u32,
    },
    /// Messages did not come.
    #[error(
        "{received} of {expected} messages arrived within {seconds} s: the machine is overloaded, or the transport has lost some; try again"
    )]
    Missing {
        /// Sent.
        expected: usize,
        /// Received.
        received: usize,
        /// How long they were waited for.
        seconds: u64,
    },
    /// Nothing came for far too long.
    #[error(
        "waited {seconds} s for {what}: the machine is overloaded, or frames are lost for good; try again"
    )]
    Stalled {
        /// The awaited event.
        what: &'static str,
        /// For how long.
        seconds: u64,
    },
}
