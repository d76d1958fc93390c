//! The simulated processes. Each has a slot, and is restarted after it has died or stopped.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::{EngineOptions, Pipeline};
use inbox::simulation::{Parts, Runner, RunnerOptions};
use inbox::{Backoff, ConsumerName, Shutdown, SubscriptionFactory};
use message::{Runtime, SizeLimit};
use outbox_log::RelayName;
use rand::Rng;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::broker::{SimulatedBroker, subscribe};
use crate::fault::Slot;
use crate::inbox::SimulatedInbox;
use crate::memory;
use crate::outbox::SimulatedLog;
use crate::process::{Process, ProcessId};
use crate::schedule::Schedule;
use crate::world::{World, pass};

/// A payload size above the limit of the destination, in bytes.
pub(crate) const OVERSIZE: usize = 4_000;

/// Maximum size of any other message with its envelope, in bytes.
pub(crate) const MESSAGE_BYTES: usize = 1_000;

/// A process, and the token that stops it.
#[derive(Debug, Clone)]
struct Life {
    process: Arc<Process>,
    stop: CancellationToken,
}

/// A slot for a process.
#[derive(Debug)]
struct Place {
    slot: Slot,
    life: Mutex<Option<Life>>,
    /// Cancelled when ended processes are no longer replaced.
    closing: CancellationToken,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct Fleet {
    places: Vec<Arc<Place>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Place {
    fn life(&self) -> MutexGuard<'_, Option<Life>> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fleet {
    pub(crate) fn start(world: &Arc<World>, schedule: &Schedule) -> Self {
        let slots = (0..schedule.relays).map(Slot::Relay).chain((0..schedule.consumers).map(Slot::Consumer));
        let place =
            |slot| Arc::new(Place { slot, life: Mutex::new(None), closing: CancellationToken::new() });
        let places: Vec<_> = slots.map(place).collect();
        let start = |place: &Arc<Place>| {
            tokio::spawn(keep_alive(Arc::clone(place), Arc::clone(world), schedule.clone()))
        };
        let tasks = places.iter().map(start).collect();
        Self { places, tasks }
    }

    /// Acts on the process in a slot, if there is one now.
    pub(crate) fn with(&self, slot: Slot, act: impl FnOnce(&Arc<Process>, &CancellationToken)) {
        let place = self.places.iter().find(|place| place.slot == slot);
        if let Some(Life { process, stop }) = place.and_then(|place| place.life().clone()) {
            act(&process, &stop);
        }
    }

    /// Resumes every suspended process.
    pub(crate) fn resume_all(&self) {
        for place in &self.places {
            if let Some(life) = &*place.life() {
                life.process.resume();
            }
        }
    }

    /// Stops all processes in an orderly way. Returns whether all ended within the bound.
    pub(crate) async fn stop(self, within: Duration) -> bool {
        for place in &self.places {
            place.closing.cancel();
            if let Some(life) = &*place.life() {
                life.stop.cancel();
            }
        }
        let all = async {
            for task in self.tasks {
                let _ = task.await;
            }
        };
        tokio::time::timeout(within, all).await.is_ok()
    }
}

/// Runs one process after another in a slot.
async fn keep_alive(place: Arc<Place>, world: Arc<World>, schedule: Schedule) {
    while !place.closing.is_cancelled() {
        let (id, seed) = world.lock().next_process();
        let process = Process::new(id, seed, schedule.shuffle);
        let stop = CancellationToken::new();
        *place.life() = Some(Life { process: Arc::clone(&process), stop: stop.clone() });
        {
            let mut state = world.lock();
            state.lives.insert(id, Arc::clone(&process));
            state.note(format_args!("{id} starts as {:?}", place.slot));
        }
        let host = process.host();
        let mut task = AbortOnDropHandle::new(match place.slot {
            Slot::Relay(_) => host.spawn(relay(id, Arc::clone(&world), host.clone(), schedule.clone(), stop)),
            Slot::Consumer(_) => {
                host.spawn(consumer(id, Arc::clone(&world), host.clone(), schedule.clone(), stop))
            }
        });
        tokio::select! {
            biased;
            ended = &mut task => {
                let how = if ended.is_ok() { "ends" } else { "breaks down" };
                world.lock().note(format_args!("{id} {how}"));
            }
            () = process.death() => {
                let mut state = world.lock();
                state.note(format_args!("{id} dies"));
                state.sever_process(id);
            }
        }
        *place.life() = None;
        world.lock().lives.remove(&id);
        drop(task);
        let pause = world.lock().rng.random_range(1..400);
        tokio::select! {
            biased;
            () = place.closing.cancelled() => {}
            () = pass(pause) => {}
        }
    }
}

async fn relay(id: ProcessId, world: Arc<World>, host: Runtime, schedule: Schedule, stop: CancellationToken) {
    let Ok(name) = RelayName::new("relay") else { return };
    let settings = settings(&schedule);
    let observer = memory::observer(&world, id, &settings);
    let store = Arc::new(SimulatedLog { world: Arc::clone(&world), process: id });
    let connector = Arc::new(SimulatedBroker { world, process: id });
    let pipeline = Pipeline::new(name, store, connector, settings).with_host(host);
    pipeline.with_observer(observer).run(stop).await;
}

fn settings(schedule: &Schedule) -> EngineOptions {
    EngineOptions::default()
        .window_entries(schedule.window_entries.into())
        .page_entries(schedule.page_entries.into())
        .window_bytes(usize::try_from(schedule.window_bytes).unwrap_or(usize::MAX))
        .page_bytes(usize::try_from(schedule.page_bytes).unwrap_or(usize::MAX))
        .unstored_max(schedule.unstored_max.into())
        .checkpoint_changes(schedule.checkpoint_changes.into())
        .lease_ttl(Duration::from_millis(1_500))
        // Long intervals: most polls find nothing, and would take most of a schedule's time.
        .poll_min(Duration::from_millis(15))
        .poll_max(Duration::from_millis(100))
        .checkpoint_interval(Duration::from_millis(80))
        .shutdown_grace(Duration::from_millis(800))
        .retry_initial(Duration::from_millis(40))
        .retry_max(Duration::from_millis(800))
        .attempts_max(3)
        .outage_delay_max(Duration::from_millis(400))
        .silent_after(Duration::from_millis(300))
        .size_limit(SizeLimit { destination: "the simulation", message_bytes_max: OVERSIZE })
}

async fn consumer(
    id: ProcessId,
    world: Arc<World>,
    host: Runtime,
    schedule: Schedule,
    stop: CancellationToken,
) {
    let Ok(name) = ConsumerName::new("billing") else { return };
    let store = SimulatedInbox { world: Arc::clone(&world), process: id, consumer: name.clone() };
    let factory = SubscriptionFactory::new(move || subscribe(Arc::clone(&world), id));
    let settings = RunnerOptions {
        batch: schedule.batch.and_then(|batch| NonZeroUsize::new(batch.into())),
        attempts_max: 5,
        backoff: Backoff { first: Duration::from_millis(30), max: Duration::from_millis(500) },
        keep_alive_interval: Some(Duration::from_millis(500)),
        maintain_interval: None,
        redrive_interval: None,
        ..RunnerOptions::default()
    };
    let mut parts = Parts::new(name, factory);
    (parts.settings, parts.host) = (settings, host);
    let runner = Runner::new(store, parts);
    let shutdown = Shutdown { graceful: stop, ..Shutdown::new() };
    // It ends with an error only when it is aborted, which does not happen here.
    let _ = runner.run(shutdown).await;
}
