//! Hosts that vanish without a word. A host is a remote shell whose connection stays open when everything behind it is gone, as when power or a cable is.

use std::path::PathBuf;

use super::{Place, Running, children_of, runs, signal, wait_until};

/// Four hosts with a rank each.
pub(crate) const HOSTS: &str = "a:1@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3,d:1@127.0.0.4";

pub(crate) struct Hosts {
    pub(crate) place: Place,
    pub(crate) shell: String,
}

impl Hosts {
    pub(crate) fn new() -> Hosts {
        let place = Place::new();
        let folder = place.folder.path().display().to_string();
        // Host g has a disk of its own, for as long as its keeper runs. The others see each other's, also locks on it.
        let shell = place.remote_shell(&format!(
            "host=$1; shift; [ ! -e {folder}/down-$host ] || exec sleep 60 2>/dev/null\n\
             [ ! -e {folder}/slow-$host ] || sleep 12\n\
             fails={folder}/fails-$host\n\
             [ ! -s $fails ] || {{ head -n 1 $fails >&2; sed -i 1d $fails; exit 255; }}\n\
             [ $host != g ] || set -- unshare --user --map-root-user --mount sh -c \
             'mount -t tmpfs -o mode=0700 none {folder}/disks; exec \"$@\"' sh \"$@\"\n\
             pipes={folder}/pipes-$host-$$; mkdir $pipes; mkfifo $pipes/in $pipes/out\n\
             while [ -e {folder} ]; do sleep 1; done <>$pipes/in 3<>$pipes/out >/dev/null 2>&1 &\n\
             \"$@\" <$pipes/in >$pipes/out 2>$pipes/errors &\n\
             echo $! >{folder}/keeper-$host\n\
             cat $pipes/out 2>/dev/null &\n\
             exec cat >$pipes/in"
        ));
        Hosts { place, shell }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.folder.path().join(name)
    }

    pub(crate) fn run(&self, options: &[&str]) -> Running {
        let disks = self.path("disks").display().to_string();
        let usual = ["--hosts", HOSTS, "--remote-shell", &self.shell, "--ckpt-every", "200ms"];
        let mut all = [usual.as_slice(), &["--node-timeout", "2s", "--node-dir", &disks]].concat();
        all.extend(options);
        self.place.run(&all)
    }

    pub(crate) fn keeper(&self, host: &str) -> u32 {
        let text =
            std::fs::read_to_string(self.path(&format!("keeper-{host}"))).expect("its keeper was started");
        text.trim().parse().expect("a process id")
    }

    /// Everything of a host is gone at once, and nobody sees it; its disk with `number`'s directory, too.
    pub(crate) fn lose(&self, host: &str, number: usize) {
        self.vanish(host);
        let job = self.job_on_disks().expect("a job");
        std::fs::remove_dir_all(job.join(number.to_string())).expect("a directory");
    }

    pub(crate) fn job_on_disks(&self) -> Option<PathBuf> {
        Some(std::fs::read_dir(self.path("disks")).ok()?.next()?.expect("an entry").path())
    }

    /// Keepers of these nodes have taken their place.
    pub(crate) fn has_locks(&self, nodes: &[u32]) -> bool {
        let job = self.job_on_disks();
        job.is_some_and(|job| nodes.iter().all(|node| job.join(format!("lock-{node}")).exists()))
    }

    pub(crate) fn vanish(&self, host: &str) {
        self.is_down(host);
        let keeper = self.keeper(host);
        let all: Vec<u32> = children_of(keeper).into_iter().chain([keeper]).collect();
        // A guard that is killed first ends nothing.
        for pid in &all {
            signal(*pid, "STOP");
        }
        for pid in &all {
            signal(*pid, "KILL");
        }
        wait_until("its processes are gone", || !all.iter().any(|pid| runs(*pid)));
    }

    pub(crate) fn is_down(&self, host: &str) {
        std::fs::write(self.path(&format!("down-{host}")), b"").expect("a file");
    }

    pub(crate) fn comes_back(&self, host: &str) {
        std::fs::remove_file(self.path(&format!("down-{host}"))).expect("it was down");
    }

    /// The next attempts to reach a host fail, as ssh does, each with one of these messages.
    pub(crate) fn refuses(&self, host: &str, messages: &[&str]) {
        std::fs::write(self.path(&format!("fails-{host}")), messages.join("\n") + "\n").expect("a file");
    }

    /// How many of these attempts were not made.
    pub(crate) fn refusals_left(&self, host: &str) -> usize {
        let left = std::fs::read_to_string(self.path(&format!("fails-{host}"))).expect("a file");
        left.lines().count()
    }

    pub(crate) fn saved(&self, job: &mut Running) {
        job.wait_for("all ranks run");
        job.wait_for("committed");
    }

    /// What a restart would take.
    pub(crate) fn job_file(&self) -> String {
        let bytes = std::fs::read(self.place.job().join("job"))
            .or_else(|_| std::fs::read(self.place.job().join("job.json")));
        String::from_utf8_lossy(&bytes.expect("the job's file")).into_owned()
    }
}
