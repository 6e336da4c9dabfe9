//! The task that owns the groups with a stage here: orders stages, starts and retires leaders and members, brings streams to them.

mod incoming;

use super::{
    RINGS, ROOM, WorkerCommand, WorkerReport, WorkerSetup,
    compute::Compute,
    context::StageContext,
    devices::Lost,
    going::Going,
    kv_receiver::KvReceiver,
    leader::{self, LeaderReport, LeaderSetup, REQUESTS},
    leader_client::LeaderRequest,
    lent::{self, LentModel, Models},
    loader::{Hold, LoadOrder, LoadOutcome, LoadTally, NotLoaded},
    member::{self, RingStream, StageEnd},
    speculation_checks::SpeculationChecks,
    speculator::DraftModel,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tsnode_coordinator::{
    batcher::{BatcherConfig, Speculation},
    policy::choice::Batches,
};
use tsnode_kernels::{engine::StageKey, load::LoadProgress, pages::PageCount};
use tsnode_protocol::{Group, GroupId, GroupLoad, Load, ModelId, Stage};

/// A group with a stage here.
struct RunningStage {
    group: Group,
    /// The device its stage is on.
    device: u16,
    /// Set where this peer leads.
    requests: Option<mpsc::Sender<LeaderRequest>>,
    rings: mpsc::Sender<RingStream>,
    report: watch::Receiver<LeaderReport>,
    retire: CancellationToken,
    /// What runs is to end for the sake of its memory. Cancelled as well when the stage has been unloaded.
    evict: CancellationToken,
}

/// Memory of a device that a stage of a model has, until it is freed.
struct Reserved {
    device: u16,
    model: ModelId,
    freed: CancellationToken,
}

pub(super) struct StageManager {
    setup: WorkerSetup,
    kv_receiver: KvReceiver,
    groups: BTreeMap<GroupId, RunningStage>,
    /// The plan's groups.
    planned: BTreeSet<GroupId>,
    /// Groups whose stage here is ordered; cancelled where the plan has dropped them since.
    loading: BTreeMap<GroupId, CancellationToken>,
    /// What ends retired groups that are not unloaded yet, and their models.
    draining: Vec<(ModelId, CancellationToken)>,
    /// Models of the plan.
    served: BTreeSet<ModelId>,
    /// What has memory of a device, or is about to get some.
    reserved: Vec<Reserved>,
    /// Stages that wait for memory which others here still have.
    waiting: Vec<LoadOrder>,
    /// Stages of the plan whose model is not lent here, or not yet: groups, and which of their stages.
    unlent: Vec<(Group, usize)>,
    /// There were such since the plan was adopted.
    out_of_kv_pages: bool,
    /// A stage was unloaded.
    freed: Arc<Notify>,
    tally: Arc<LoadTally>,
    checks: Arc<SpeculationChecks>,
    /// Streams of gateways that have not ended.
    talks: TaskTracker,
    /// Sequences on all stages.
    held: Arc<AtomicUsize>,
    models: Models,
    /// Ends the questions to their devices.
    asking: CancellationToken,
    /// Devices that are lost.
    lost: BTreeSet<u16>,
    orders: mpsc::Sender<LoadOrder>,
    far: watch::Receiver<Option<LoadProgress>>,
    tasks: TaskTracker,
}

/// What a manager is given beside its setup.
pub(super) struct ManagerParts {
    pub tally: Arc<LoadTally>,
    /// To the loader.
    pub orders: mpsc::Sender<LoadOrder>,
    /// How far the loader is.
    pub far: watch::Receiver<Option<LoadProgress>>,
    pub tasks: TaskTracker,
}

impl StageManager {
    /// With no group yet, and what tells of its devices.
    pub fn new(mut setup: WorkerSetup, parts: ManagerParts) -> (Self, mpsc::Receiver<Lost>) {
        let ManagerParts { tally, orders, far, tasks } = parts;
        let asking = setup.stop.child_token();
        let (models, losses) = lent::lend(std::mem::take(&mut setup.models), &tasks, &asking);
        let manager = Self {
            setup,
            kv_receiver: KvReceiver::default(),
            groups: BTreeMap::new(),
            planned: BTreeSet::new(),
            loading: BTreeMap::new(),
            draining: Vec::new(),
            served: BTreeSet::new(),
            reserved: Vec::new(),
            waiting: Vec::new(),
            unlent: Vec::new(),
            out_of_kv_pages: false,
            freed: Arc::default(),
            tally,
            checks: Arc::default(),
            talks: TaskTracker::new(),
            held: Arc::default(),
            models,
            asking,
            lost: BTreeSet::new(),
            orders,
            far,
            tasks,
        };
        (manager, losses)
    }

    /// Until `stop`, or until nobody orders any more.
    pub async fn run(
        mut self,
        mut commands: mpsc::Receiver<WorkerCommand>,
        mut loaded: mpsc::Receiver<LoadOutcome>,
        mut losses: mpsc::Receiver<Lost>,
    ) {
        let (stop, freed) = (self.setup.stop.clone(), self.freed.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = freed.notified(), if !self.waiting.is_empty() => self.order_again(),
                command = commands.recv() => match command {
                    Some(WorkerCommand::Lend(models)) => losses = self.lend(models),
                    Some(command) => self.apply_command(command),
                    None => return,
                },
                Some(loaded) = loaded.recv() => self.open_group(loaded),
                Some(lost) = losses.recv() => self.lose(lost),
                arrived = self.setup.incoming.next() => match arrived {
                    Some(arrived) => self.receive(arrived),
                    None => return,
                },
            }
        }
    }

    fn apply_command(&mut self, command: WorkerCommand) {
        match command {
            // Changes what the loop listens to.
            WorkerCommand::Lend(_) => {}
            WorkerCommand::Adopt(plan, beside) => self.adopt(&plan.groups, &beside),
            WorkerCommand::Keep(beside) => self.retire_all_but(&beside),
            WorkerCommand::Rest => self.adopt(&[], &BTreeSet::new()),
            WorkerCommand::Serve { group, request } => self.serve(group, *request),
            WorkerCommand::Report(answer) => {
                // An asker that has gone needs no answer.
                let _ = answer.send(self.report());
            }
        }
    }

    /// Serves these models from now on. What runs of those before goes on to its end on its own threads.
    fn lend(&mut self, models: Vec<LentModel>) -> mpsc::Receiver<Lost> {
        self.asking.cancel();
        self.asking = self.setup.stop.child_token();
        let (models, losses) = lent::lend(models, &self.tasks, &self.asking);
        (self.models, self.lost) = (models, BTreeSet::new());
        // A peer that starts again may find the plan in which it was before it has the plan's model: no other plan need follow.
        for (group, position) in std::mem::take(&mut self.unlent) {
            self.order(group, position);
        }
        losses
    }

    fn adopt(&mut self, groups: &[Group], beside: &BTreeSet<GroupId>) {
        self.planned = groups.iter().map(|g| g.id).collect();
        self.served = groups.iter().map(|g| g.model).collect();
        self.loading.retain(|id, given_up| {
            let kept = self.planned.contains(id);
            if !kept {
                given_up.cancel();
            }
            kept
        });
        self.waiting.retain(|order| !order.given_up.is_cancelled());
        self.unlent.clear();
        self.out_of_kv_pages = false;
        self.retire_all_but(beside);
        if !self.waiting.is_empty() {
            // What the plans before had waits on.
            self.out_of_kv_pages = true;
            self.hurry(self.draining.clone());
        }
        for group in groups {
            let position = group.stages.iter().position(|s| s.peer == self.setup.me);
            let is_new = !self.groups.contains_key(&group.id) && !self.loading.contains_key(&group.id);
            if let (Some(position), true) = (position, is_new) {
                self.order(group.clone(), position);
            }
        }
    }

    /// Lets those groups drain that neither the plan has nor are to be kept beside it.
    fn retire_all_but(&mut self, beside: &BTreeSet<GroupId>) {
        self.draining.retain(|(_, evict)| !evict.is_cancelled());
        let (planned, draining) = (&self.planned, &mut self.draining);
        let mut retired = Vec::new();
        self.groups.retain(|id, running| {
            let kept = planned.contains(id) || beside.contains(id);
            if !kept {
                tracing::info!(group = %id, "group leaves the plan: draining");
                running.retire.cancel();
                draining.push((running.group.model, running.evict.clone()));
                retired.push((running.group.model, running.evict.clone()));
            }
            kept
        });
        if self.out_of_kv_pages {
            self.hurry(retired);
        }
    }

    /// What drains is to be over before long: its memory is waited for. What runs of a model that the plan has no more has nowhere
    /// to go on, and comes to its end.
    fn hurry(&self, draining: Vec<(ModelId, CancellationToken)>) {
        for (_, evict) in draining.into_iter().filter(|(model, _)| self.served.contains(model)) {
            self.tasks.spawn(async move {
                tokio::select! {
                    () = evict.cancelled() => {}
                    () = sleep(ROOM) => evict.cancel(),
                }
            });
        }
    }

    /// What is on a GPU that is lost goes on elsewhere: steps fail there, the plan after this one has it no more.
    fn lose(&mut self, Lost { device, why }: Lost) {
        // Each of its models tells it.
        if self.lost.contains(&device) {
            return;
        }
        tracing::error!(device, error = %why, "a GPU does nothing any more: it is not lent until this peer starts again");
        self.leave(device);
    }

    /// Computes nothing on a device any more.
    fn leave(&mut self, device: u16) {
        self.lost.insert(device);
        let draining = &mut self.draining;
        self.groups.retain(|id, running| {
            let kept = running.device != device;
            if !kept {
                tracing::info!(group = %id, "group loses its GPU");
                running.retire.cancel();
                draining.push((running.group.model, running.evict.clone()));
            }
            kept
        });
    }

    fn order(&mut self, group: Group, position: usize) {
        let device = group.stages[position].device;
        let model = self.models.get(&group.model).filter(|_| !self.lost.contains(&device)).cloned();
        let place = model.and_then(|model| Some((model.devices.compute(device)?.clone(), model)));
        let Some((compute, model)) = place else {
            // It was lent when the plan was made: it is lent again before long, or the next plan knows better.
            let of = group.model;
            tracing::info!(group = %group.id, model = %of, device, "the plan gives this peer a stage that it does not lend");
            self.unlent.push((group, position));
            return;
        };
        let given_up = self.setup.stop.child_token();
        self.loading.insert(group.id, given_up.clone());
        self.send_order(LoadOrder { group, position, model, compute, given_up, hold: None });
    }

    /// Has a stage loaded, once there is memory for its model beside those that have some.
    fn send_order(&mut self, order: LoadOrder) {
        if !self.has_room(&order) {
            tracing::info!(group = %order.group.id, model = %order.group.model, "waits for the memory of another model");
            return self.wait(order);
        }
        let (hold, freed) = Hold::new(self.freed.clone());
        self.reserved.push(Reserved { device: order.device(), model: order.group.model, freed });
        if let Err(full) = self.orders.try_send(LoadOrder { hold: Some(hold), ..order }) {
            let LoadOrder { group, hold, .. } = full.into_inner();
            tracing::info!(group = %group.id, "too many stages wait to be loaded; this one waits for the next plan");
            self.loading.remove(&group.id);
            hold.into_iter().for_each(Hold::give_back);
        }
    }

    fn has_room(&mut self, order: &LoadOrder) -> bool {
        self.reserved.retain(|reserved| !reserved.freed.is_cancelled());
        let device = order.device();
        let mut models: BTreeSet<ModelId> =
            self.reserved.iter().filter(|reserved| reserved.device == device).map(|reserved| reserved.model).collect();
        models.insert(order.group.model);
        order.model.adverted.get(usize::from(device)).is_none_or(|adverted| adverted.holds(&models))
    }

    /// A stage waits until others' memory is free.
    fn wait(&mut self, order: LoadOrder) {
        self.draining.retain(|(_, evict)| !evict.is_cancelled());
        if !std::mem::replace(&mut self.out_of_kv_pages, true) {
            self.hurry(self.draining.clone());
        }
        self.waiting.push(order);
    }

    /// A stage was unloaded: one that waited for memory may fit.
    fn order_again(&mut self) {
        for order in std::mem::take(&mut self.waiting) {
            self.send_order(order);
        }
    }

    /// A stage that cannot be loaded is logged and left out: its leader never gets ready. One that only has no room beside what
    /// else is here waits until that is gone.
    fn not_loaded(&mut self, mut order: LoadOrder, why: NotLoaded) {
        // Others may wait for what it would have had: that is free at the end of this.
        let hold = order.hold.take();
        if order.given_up.is_cancelled() {
            return;
        }
        self.draining.retain(|(_, evict)| !evict.is_cancelled());
        let (group, Stage { layers, device, .. }) = (&order.group, order.group.stages[order.position]);
        let mut beside = self.groups.iter().filter(|(_, running)| running.device == device);
        let is_alone = self.draining.is_empty() && beside.all(|(id, _)| self.planned.contains(id));
        if let (NotLoaded::NoRoom(why), false) = (&why, is_alone) {
            tracing::info!(group = %group.id, %layers, why, "no room beside what the plan no longer has: that goes first");
            // It would be the first to hear of it, and find no room again.
            hold.into_iter().for_each(Hold::give_back);
            return self.wait(order);
        }
        tracing::error!(group = %group.id, %layers, error = %why, "stage not loaded");
        self.loading.remove(&order.group.id);
        if let NotLoaded::Unfit(_) = why {
            tracing::error!(
                device,
                "a GPU computes something else than the processor: it is not lent until this peer starts again"
            );
            self.leave(device);
        }
    }

    /// Starts the task that serves a loaded stage, or drops the stage if the plan has changed meanwhile.
    fn open_group(&mut self, LoadOutcome { order, stage, draft }: LoadOutcome) {
        let key = match stage {
            Ok(key) => key,
            Err(why) => return self.not_loaded(order, why),
        };
        let LoadOrder { group, position, model, compute, given_up, hold } = order;
        if !given_up.is_cancelled() {
            self.loading.remove(&group.id);
        }
        if given_up.is_cancelled() {
            self.tasks.spawn(async move {
                unload(&compute, key).await;
                drop(hold);
            });
            return;
        }
        let context = StageContext {
            compute,
            links: self.setup.links.clone(),
            me: self.setup.me,
            key,
            model: group.model,
            name: model.source.card().name.as_str().into(),
            shape: model.source.card().shape,
            layers: group.stages[position].layers,
            dtype: model.dtype,
            position: position as u16,
            grammars: model.grammars.clone(),
            held: self.held.clone(),
            history: self.setup.history.clone(),
            tasks: self.tasks.clone(),
        };
        self.start_task(group, context, (draft, hold));
    }

    /// Its memory is held until the stage is unloaded.
    fn start_task(&mut self, group: Group, context: StageContext, (draft, hold): (Option<DraftModel>, Option<Hold>)) {
        let (rings_in, rings) = mpsc::channel(RINGS);
        let (report, reported) = watch::channel(LeaderReport::default());
        let retire = self.setup.stop.child_token();
        let evict = self.setup.stop.child_token();
        let end = GroupEnd { compute: context.compute.clone(), key: context.key, evict: evict.clone(), hold };
        let mut requests_in = None;
        let (id, device) = (group.id, group.stages[usize::from(context.position)].device);
        let WorkerSetup { me, moving, going: others, .. } = &self.setup;
        let going = Going { me: *me, moving: moving.clone(), others: others.clone() };
        if context.position == 0 {
            let (sender, requests) = mpsc::channel(REQUESTS);
            requests_in = Some(sender);
            let roster = &self.setup.roster;
            let batches = Batches::measured(roster.profiles(&group).iter()).by(roster.batch_policy(group.model));
            // Of this host's device it is known at once, of others' by their adverts.
            let shares_pages = context.compute.share().is_some() || roster.shares_devices(&group);
            let drafts = match (self.setup.batcher.speculation, &draft) {
                (Speculation::Measured, Some(_)) => Speculation::Drafted,
                (drafts, _) => drafts,
            };
            let cuts = !context.shape.has_state();
            tracing::debug!(group = %id, ?batches, ?drafts, cuts, "leads");
            let setup = LeaderSetup {
                group: group.clone(),
                context,
                kv_receiver: self.kv_receiver.clone(),
                roster: self.setup.roster.clone(),
                config: BatcherConfig {
                    stages: group.stages.len(),
                    batches,
                    shares_pages,
                    speculation: drafts,
                    cuts,
                    ..self.setup.batcher.clone()
                },
                draft,
                checks: self.checks.clone(),
                requests,
                rings,
                report,
                retire: retire.clone(),
                going,
                evict: evict.clone(),
                stop: self.setup.stop.clone(),
            };
            self.tasks.spawn(async move {
                leader::run(setup).await;
                end.come().await;
            });
        } else {
            let (member, roster) = (group.clone(), self.setup.roster.clone());
            let context = (context, self.kv_receiver.clone());
            let over = StageEnd { retire: retire.clone(), moving: going.moving, evict: evict.clone() };
            self.tasks.spawn(async move {
                member::run(member, context, roster, rings, over).await;
                end.come().await;
            });
        }
        let running =
            RunningStage { group, device, requests: requests_in, rings: rings_in, report: reported, retire, evict };
        self.groups.insert(id, running);
    }

    fn report(&self) -> WorkerReport {
        let mut report = WorkerReport {
            held: self.held.load(Ordering::Relaxed),
            talks: self.talks.len(),
            loading: *self.far.borrow(),
            weights: self.tally.so_far(),
            out_of_kv_pages: self.out_of_kv_pages,
            lost: self.lost.clone(),
            kv_refused: self.kv_receiver.refused(),
            drafts: self.checks.so_far(),
            weights_given: self.setup.giver.given(),
            used: self.models.iter().map(|(model, lent)| (*model, lent.devices.used())).collect(),
            ..WorkerReport::default()
        };
        for (id, running) in &self.groups {
            let LeaderReport { ready, load } = *running.report.borrow();
            let devices = self.models.get(&running.group.model).map(|model| &model.devices);
            if ready && !devices.is_some_and(|devices| devices.hangs(running.device)) {
                let pages = devices.map(|devices| devices.pages_of(running.device));
                let PageCount { free, total } = pages.unwrap_or(PageCount { free: 0, total: 0 });
                let load = Load { free_pages: free as u32, total_pages: total as u32, ..load };
                report.ready.push(GroupLoad { group: *id, load });
            }
            report.load.running += load.running;
            report.load.waiting += load.waiting;
            report.load.pending_tokens += load.pending_tokens;
        }
        for (n, model) in self.models.values().enumerate() {
            let (pages, in_use) = model.devices.pages();
            report.in_use.weights += in_use.weights;
            if n == 0 {
                // All have the same pools: what one says of them is said for all.
                report.in_use.kv += in_use.kv;
                report.load.free_pages += pages.free as u32;
                report.load.total_pages += pages.total as u32;
            }
        }
        report
    }
}

/// The end of a group's task: its stage is unloaded, and that is said.
struct GroupEnd {
    compute: Compute,
    key: StageKey,
    evict: CancellationToken,
    hold: Option<Hold>,
}

impl GroupEnd {
    async fn come(self) {
        unload(&self.compute, self.key).await;
        self.evict.cancel();
        drop(self.hold);
    }
}

async fn unload(compute: &Compute, key: StageKey) {
    // The thread being gone leaves nothing to unload.
    let _ = compute.call(move |engine| engine.unload(key)).await;
}
