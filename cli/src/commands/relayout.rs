//! Another layout of the ranks: a restart that gives hosts other numbers of ranks than their nodes have images (R35).
//!
//! 1. The newest generation that can be restored is made whole on the nodes of the former layout, by keepers and R28; no life begins.
//! 2. Its images move to the nodes of the new layout, while the locks of all nodes of both are held. The job file then names the new layout.
//! 3. The new nodes protect it. The restart goes on as any other one.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ckpt_glue::names::NodeIndex;
use ckpt_glue::protection::relayout::{
    ImageMove, Interrupted, image_moves, interrupted, left_places, source_hosts,
};
use launcher::error::LauncherError;
use launcher::nodes::{NO_NODE, groups_over};
use launcher::registry::Registration;
use launcher::{
    HERE, ImageNode, ImageServer, Node, NodeRoot, Outcome, OwnDirectories, Plan, Purpose, former_host, text,
};
use store::job::TakenFile;
use store::protect::Scheme;
use store::record::ManifestImage;
use store::{Decision, Directory, GenerationId, JobDirectory, JobFile, Manifest, StoreError};
use transport::JobId;

use super::hosts::HostArguments;
use super::node_placement::{count_ranks, fits};
use super::progress::Progress;
use super::restart::{beginning_manifest, choose_on_nodes, is_parent, open_job, prepare};
use super::run::{Settings, close, lock, read_settings, setting, write_places};
use super::{print_message, progress_of, protection};
use crate::arguments::RestartArguments;
use crate::error::CliError;

/// Nodes that are reached at the same time, and images that are moved.
const THREADS_MAX: usize = 16;

/// Changes the layout, if these options ask for another one.
pub(crate) fn change_layout(arguments: &RestartArguments, json: bool) -> Result<(), CliError> {
    // A copy is brought to the nodes that its records name.
    if arguments.from.is_some() || !(arguments.hosts.has_shares() || arguments.hosts.nodes.is_some()) {
        return Ok(());
    }
    let Some(change) = Change::wanted(arguments)? else { return Ok(()) };
    // A restart that lacks the key moves nothing.
    arguments.key.encryption_as_before(&open_job(&arguments.directory)?.1, true)?;
    let gathering = RestartArguments {
        directory: arguments.directory.clone(),
        generation: arguments.generation,
        hosts: change.sources.clone(),
        bind: arguments.bind.clone(),
        // The job is announced when it goes on.
        quiet: true,
        ..RestartArguments::default()
    };
    let is_quiet = arguments.quiet || json;
    let (plan, place) = prepare(&gathering, Purpose::Gather)?;
    let outcome = without_ranks(&plan, is_quiet, json)?;
    let chosen = outcome.repairs.chosen.as_deref();
    let chosen = chosen.and_then(|chosen| plan_generation(&plan, chosen).transpose()).transpose()?;
    let generation = chosen.ok_or_else(|| CliError::NotGathered { path: place.path.clone() })?;
    Move::new(&plan, change, generation)?.perform(is_quiet)?;
    drop(place);
    protect(arguments, is_quiet, json)
}

/// The generation of this name, which is committed.
fn plan_generation(plan: &Plan, name: &str) -> Result<Option<GenerationId>, CliError> {
    let (directory, _) = JobDirectory::open(Directory::open(&plan.directory)?)?;
    let generations = directory.on_node(NO_NODE).generations()?;
    Ok(generations.into_iter().map(|found| found.id).find(|id| id.to_string() == name))
}

/// Runs keepers that start no rank.
///
/// # Errors
/// [`CliError::Stopped`]: a person has ended them before their work was done.
fn without_ranks(plan: &Plan, is_quiet: bool, json: bool) -> Result<Outcome, CliError> {
    let mut progress = Progress::new(plan.ranks, is_quiet, json)?;
    let registration = Registration::create(plan)?;
    let outcome = launcher::run(plan, &registration, &mut progress)?;
    drop(registration);
    close(&mut progress);
    if outcome.is_interrupted { Err(CliError::Stopped) } else { Ok(outcome) }
}

/// The new nodes protect the generation, which nothing has protected in this layout. If they cannot, the next checkpoint is protected.
fn protect(arguments: &RestartArguments, is_quiet: bool, json: bool) -> Result<(), CliError> {
    let protecting = RestartArguments {
        directory: arguments.directory.clone(),
        bind: arguments.bind.clone(),
        quiet: true,
        ..RestartArguments::default()
    };
    let (plan, place) = prepare(&protecting, Purpose::Protect)?;
    if !protection::is_any_protected(plan.own_directories.as_ref()) {
        return Ok(());
    }
    let repairs = without_ranks(&plan, is_quiet, json)?.repairs;
    if repairs.protected {
        note_protected(&place.path)?;
    } else {
        print_message(format_args!(
            "warning: the moved generation is not protected in the new layout; the next checkpoint will be"
        ));
    }
    Ok(())
}

/// The caller holds the lock of the job's directory.
fn note_protected(path: &Path) -> Result<(), CliError> {
    let storage = Directory::open(path)?;
    let (_, mut file) = JobDirectory::open(storage.clone())?;
    if file.settings.remove(setting::UNPROTECTED).is_some() {
        JobDirectory::renew(storage, &file)?;
    }
    Ok(())
}

/// A change of the layout.
struct Change {
    /// The hosts of the former nodes, as far as they answer.
    sources: HostArguments,
    /// The new nodes.
    nodes: Vec<Node>,
    spares: Vec<Node>,
    own: OwnDirectories,
    /// Hosts are named that were not there before.
    has_others: bool,
}

impl Change {
    /// `None`: the nodes of the job fit the options.
    fn wanted(arguments: &RestartArguments) -> Result<Option<Change>, CliError> {
        let (mut directory, mut file) = open_job(&arguments.directory)?;
        let path = arguments.directory.canonicalize()?;
        if complete_interrupted(&path)? {
            (directory, file) = open_job(&arguments.directory)?;
        }
        // The restart itself reports a job that cannot be restarted.
        let Ok((beginning, _)) = choose_on_nodes(&mut directory, arguments.generation) else {
            return Ok(None);
        };
        let manifest = beginning_manifest(&mut directory, beginning)?;
        let Some(manifest) = manifest.filter(|_| protection::is_in(&file)) else { return Ok(None) };
        let Settings { hosts: before, bind, .. } = read_settings(&file)?;
        let bind = arguments.bind.clone().unwrap_or(bind);
        let hosts = arguments.hosts.clone().or(before.clone());
        let nodes = hosts.nodes(file.ranks, &bind)?;
        if nodes.len() == manifest.nodes.len() && fits(&manifest, &nodes, &hosts) {
            return Ok(None);
        }
        let former = before.nodes(file.ranks, &bind)?;
        let Some(own) = protection::read(&file, &path, &former)? else { return Ok(None) };
        let scheme = match own.scheme == Scheme::default_for(former.len()) {
            true => Scheme::default_for(nodes.len()),
            false => own.scheme,
        };
        let is_inside = own.root.is_in(&path) && nodes.iter().any(|node| node.host.is_some());
        let root = if is_inside { NodeRoot::State(file.job.to_string()) } else { own.root.clone() };
        let root = root.with_layout(own.root.layout().saturating_add(1));
        let groups = if scheme == Scheme::None { Vec::new() } else { groups_over(scheme, &nodes)? };
        let sources = match before.names_hosts() {
            true => sources(&hosts, &before, &manifest, &former, &own.root, file.job),
            false => HostArguments::default(),
        };
        Ok(Some(Change {
            sources,
            spares: hosts.spare_nodes(&bind)?,
            has_others: arguments.hosts.has_others_than(&before),
            own: OwnDirectories::new(root, scheme, own.budget, groups),
            nodes,
        }))
    }
}

/// A host for each node of the former layout. Hosts that are not named are asked, in case that they still have their disks.
fn sources(
    hosts: &HostArguments,
    before: &HostArguments,
    manifest: &Manifest,
    former: &[Node],
    root: &NodeRoot,
    job: JobId,
) -> HostArguments {
    let of_file: Vec<String> = former.iter().map(Node::name).collect();
    let names = if of_file.len() == manifest.nodes.len() { &of_file } else { &manifest.nodes };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let named = if hosts.names_hosts() { hosts.placed_names() } else { vec![HERE] };
    let mut unnamed: Vec<(u32, &Node)> = (0..).zip(former).collect();
    unnamed.retain(|(_, node)| !named.contains(&node.name().as_str()));
    unnamed.dedup_by_key(|(_, node)| node.name());
    let unnamed: Vec<(ImageNode, &Node)> = unnamed
        .into_iter()
        .map(|(node, place)| (ImageNode { job, node, root: root.clone() }, place))
        .collect();
    let ask = |(of, place): &(ImageNode, &Node)| {
        Ok((place.host.is_none() || ImageServer::answers(place, of)).then(|| place.name()))
    };
    // `ask` never fails.
    let answers: BTreeSet<String> =
        at_once(&unnamed, ask).unwrap_or_default().into_iter().flatten().collect();
    let answering: BTreeSet<&str> = names.iter().copied().filter(|name| answers.contains(*name)).collect();
    let found = source_hosts(&names, &named, &answering);
    let found = found.iter().zip(count_ranks(manifest)).map(|(host, ranks)| (host.unwrap_or(HERE), ranks));
    hosts.with_hosts(before, found)
}

/// Completes or gives up a change of the layout that was interrupted. Returns whether there was one. The caller holds no lock of the job's directory.
pub(crate) fn complete_interrupted(path: &Path) -> Result<bool, CliError> {
    let storage = Directory::open(path)?;
    if JobDirectory::open(storage.clone())?.0.layouts()?.is_empty() {
        return Ok(false);
    }
    let _lock = lock(&storage, path)?;
    complete(path)
}

/// The same, below the caller's lock.
pub(crate) fn complete(path: &Path) -> Result<bool, CliError> {
    let (directory, file) = JobDirectory::open(Directory::open(path)?)?;
    let mut directory = directory.on_node(NO_NODE);
    let current = protection::own_root(&file, path).map_or(1, |root| root.layout());
    let found = interrupted(current, &directory.layouts()?);
    for change in &found {
        match *change {
            Interrupted::Complete(layout) => {
                let generation = directory.take_layout(layout)?;
                print_message(format_args!(
                    "a restart had moved the images of generation {generation} to other nodes, and was interrupted then: the job goes on there"
                ));
            }
            Interrupted::Discard(layout) => directory.remove_layout(layout)?,
        }
    }
    Ok(!found.is_empty())
}

/// The images of a generation, on their way.
struct Move<'a> {
    plan: &'a Plan,
    change: Change,
    directory: JobDirectory<Directory>,
    /// The job file of the new layout.
    file: JobFile,
    manifest: Manifest,
    moves: Vec<ImageMove>,
}

impl Move<'_> {
    fn new(plan: &Plan, change: Change, generation: GenerationId) -> Result<Move<'_>, CliError> {
        let (directory, file) = JobDirectory::open(Directory::open(&plan.directory)?)?;
        let mut directory = directory.on_node(NO_NODE);
        let former = directory.manifest(generation)?;
        let before: Vec<NodeIndex> = former.images.iter().map(|image| NodeIndex(image.node)).collect();
        let shares: Vec<u32> = change.nodes.iter().map(|node| node.ranks).collect();
        // The options were read for as many ranks.
        let moves = image_moves(&before, &shares).unwrap_or_default();
        let moved =
            |(image, to): (&ManifestImage, &ImageMove)| ManifestImage { node: to.to.0, ..image.clone() };
        let manifest = Manifest {
            nodes: change.nodes.iter().map(Node::name).collect(),
            images: former.images.iter().zip(&moves).map(moved).collect(),
            ..former
        };
        let file = file_of(&file, plan, &change, generation)?;
        Ok(Move { plan, change, directory, file, manifest, moves })
    }

    fn perform(mut self, is_quiet: bool) -> Result<(), CliError> {
        let decisions = self.directory.decisions()?;
        let former = self.plan.own_directories.as_ref().map(|own| own.root.clone());
        let former = former.unwrap_or_else(|| self.change.own.root.with_layout(1));
        let sources = self.servers(&self.plan.nodes, &former)?;
        at_once(&sources, |source| Ok(locked(source).hold(&decisions)?))?;
        let targets = self.servers(&self.change.nodes, &self.change.own.root)?;
        let layout = self.change.own.root.layout();
        let filled = self.fill(&sources, &targets, &decisions, is_quiet);
        let moved = filled.and_then(|bytes| {
            // A launcher that was stopped for long has lost them, and the job may go on in the former layout.
            at_once(&sources, |source| Ok(locked(source).confirm()?))?;
            self.directory.write_layout(layout, &self.manifest)?;
            self.rename()?;
            Ok(bytes)
        });
        let bytes = moved.inspect_err(|_| self.discard(&targets))?;
        // Before anything else: another launcher could begin a life in the former layout.
        print_warnings(&sources, ImageServer::leave);
        self.directory.take_layout(layout)?;
        if !is_quiet {
            self.announce(bytes, &former);
        }
        Ok(())
    }

    /// Makes the generation whole on the new nodes. Returns the bytes of its files.
    fn fill(
        &mut self,
        sources: &[Mutex<ImageServer>],
        targets: &[Mutex<ImageServer>],
        decisions: &[Decision],
        is_quiet: bool,
    ) -> Result<u64, CliError> {
        let generation = self.manifest.generation;
        let (job_file, seat) = (self.file.emit(), self.directory.held_seat()?);
        at_once(targets, |target| Ok(locked(target).prepare(&job_file, decisions, generation, seat)?))?;
        let bytes = self.copy(sources, targets, is_quiet)?;
        at_once(targets, |target| Ok(locked(target).commit(&self.manifest)?))?;
        Ok(bytes)
    }

    /// The job file names the new layout.
    fn rename(&self) -> Result<(), CliError> {
        JobDirectory::renew(Directory::open(&self.plan.directory)?, &self.file)?;
        Ok(())
    }

    /// Removes the new nodes' directories after an error, unless the job file names them.
    fn discard(&self, targets: &[Mutex<ImageServer>]) {
        let file =
            Directory::open(&self.plan.directory).map_err(StoreError::from).and_then(JobDirectory::open);
        if file.is_ok_and(|(_, file)| file != self.file) {
            print_warnings(targets, ImageServer::discard);
        }
    }

    fn announce(&self, bytes: u64, former: &NodeRoot) {
        let places = |nodes: &[Node]| {
            let places = nodes.iter().map(|node| format!("{}:{}", node.name(), node.ranks));
            places.collect::<Vec<_>>().join(", ")
        };
        print_message(format_args!(
            "generation {} moved from {} to {} ({})",
            self.manifest.generation,
            places(&self.plan.nodes),
            places(&self.change.nodes),
            text::bytes(bytes)
        ));
        let now: BTreeSet<String> = self.change.nodes.iter().map(Node::name).collect();
        let left: BTreeSet<String> =
            self.plan.nodes.iter().filter(|node| node.host.is_some()).map(Node::name).collect();
        let left: Vec<&str> = left.difference(&now).map(String::as_str).collect();
        let on = if left.is_empty() { String::new() } else { format!(" on {}", left.join(", ")) };
        // Keepers of the new nodes remove former roots beside their own.
        if !left.is_empty() || former.with_layout(1) != self.change.own.root.with_layout(1) {
            let own = self.plan.directory.display();
            let except = match former.layouts().any(|root| is_parent(&root, &self.plan.directory)) {
                true => format!(", but not {own}, which is the job's directory"),
                false => String::new(),
            };
            print_message(format_args!(
                "images of the former layout stay in {former}{on}; remove them when a checkpoint has been committed{except}"
            ));
        }
    }

    /// A server for each node, whose lock it holds, once it has it, until it is dropped (R30).
    fn servers(&self, nodes: &[Node], root: &NodeRoot) -> Result<Vec<Mutex<ImageServer>>, CliError> {
        let start = |(number, node): (u32, &Node)| {
            let of = ImageNode { job: self.plan.job, node: number, root: root.clone() };
            ImageServer::start(node, &of).map(Mutex::new)
        };
        // Each ends with the thread that has started it.
        Ok((0..).zip(nodes).map(start).collect::<Result<Vec<_>, LauncherError>>()?)
    }

    /// Copies all files. Returns their bytes.
    fn copy(
        &self,
        sources: &[Mutex<ImageServer>],
        targets: &[Mutex<ImageServer>],
        is_quiet: bool,
    ) -> Result<u64, CliError> {
        let generation = self.manifest.generation;
        let expected = self.manifest.images.iter().map(|image| image.summary.bytes).sum();
        let progress = progress_of(is_quiet, format_args!("moving generation {generation}"), expected);
        let copied = AtomicU64::new(0);
        let count = |bytes: u64| progress.set(copied.fetch_add(bytes, Ordering::Relaxed) + bytes);
        at_once(&self.moves, |&ImageMove { rank, from, to }| {
            // Always the source's lock first: no two wait for each other.
            let mut source = locked(&sources[from.0 as usize]);
            let mut target = locked(&targets[to.0 as usize]);
            for file in [TakenFile::Base, TakenFile::Image] {
                source.copy_to(&mut target, (generation, rank, file), &mut |bytes| count(bytes))?;
            }
            Ok(())
        })?;
        Ok(copied.into_inner())
    }
}

/// Works on all items, several at a time. After an error no further one is begun.
fn at_once<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, CliError> + Sync,
) -> Result<Vec<R>, CliError> {
    let next = AtomicUsize::new(0);
    let one = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { return Ok(done) };
            done.push((number, work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?));
        }
    };
    let done = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..items.len().min(THREADS_MAX)).map(|_| scope.spawn(one)).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // All of them end before the first error is returned.
        joined.collect::<Vec<Result<Vec<(usize, R)>, CliError>>>()
    });
    let mut all =
        done.into_iter().collect::<Result<Vec<_>, CliError>>()?.into_iter().flatten().collect::<Vec<_>>();
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

/// Asks all servers, whatever others of them answer. Errors are printed.
fn print_warnings(
    servers: &[Mutex<ImageServer>],
    ask: impl Fn(&mut ImageServer) -> Result<(), LauncherError> + Sync,
) {
    let ask = |server: &Mutex<ImageServer>| {
        if let Err(error) = ask(&mut locked(server)) {
            print_message(format_args!("warning: {error}"));
        }
        Ok(())
    };
    // `ask` never fails.
    let _ = at_once(servers, ask);
}

fn locked(server: &Mutex<ImageServer>) -> std::sync::MutexGuard<'_, ImageServer> {
    server.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The job file of the new layout.
fn file_of(
    file: &JobFile,
    plan: &Plan,
    change: &Change,
    generation: GenerationId,
) -> Result<JobFile, CliError> {
    let Settings { hosts: before, bind, .. } = read_settings(file)?;
    let mut settings = file.settings.clone();
    let known = settings.get(setting::FORMER_HOSTS).map(String::as_str).unwrap_or_default();
    let known = known.split(',').filter(|place| !place.is_empty()).map(str::to_owned);
    let former = before.nodes(file.ranks, &bind)?;
    let places = |nodes: &[Node]| -> BTreeSet<String> {
        (0..).map(NodeIndex).zip(nodes).filter_map(|(node, place)| former_host(node, place)).collect()
    };
    let known: BTreeSet<String> = known.chain(places(&former)).collect();
    let layout = change.own.root.layout() - 1;
    let left = left_places(&known, &places(&plan.nodes), layout);
    for name in [
        setting::HOSTS,
        setting::REMOTE_SHELL,
        setting::BIND,
        setting::NODES,
        setting::DOMAINS,
        setting::SPARE_HOSTS,
        setting::GROUPS,
        setting::FORMER_HOSTS,
        setting::UNPROTECTED,
    ] {
        settings.remove(name);
    }
    if change.has_others {
        // The NIC that the job used last was one of its former hosts.
        settings.remove(setting::RAIL);
    }
    write_places(&change.nodes, &mut settings);
    let spares = launcher::write_places(&change.spares).map(|spares| (setting::SPARE_HOSTS, spares));
    let groups = protection::groups_text(change.own.groups()).map(|groups| (setting::GROUPS, groups));
    let left = Some(left).filter(|left| !left.is_empty());
    let left = left.map(|left| (setting::FORMER_HOSTS, left.into_iter().collect::<Vec<_>>().join(",")));
    let own =
        [(setting::NODE_DIRECTORY, change.own.root.emit()), (setting::PARITY, change.own.scheme.to_string())];
    let unprotected = protection::is_any_protected(Some(&change.own));
    let unprotected = unprotected.then(|| (setting::UNPROTECTED, generation.to_string()));
    let all = own.into_iter().chain(spares).chain(groups).chain(left).chain(unprotected);
    settings.extend(all.map(|(name, value)| (name.to_owned(), value)));
    Ok(JobFile { settings, ..file.clone() })
}
