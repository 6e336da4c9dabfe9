//! Cards that hold stages together: each has its outputs of every matrix, its heads and pages for those, and all have whole
//! rows, as ranks of processors have ([`ranks`](crate::ranks)).
//!
//! One thread asks all of them in turns, a piece of a layer at a time; between two pieces every card copies the others'
//! columns beside its own, once those are computed, or takes them by NCCL ([`gathers`]). Cards wait for each other by marks in
//! their queues, and nobody waits for a card before a step's results are wanted.
//!
//! Nothing is overwritten that another still copies from: a card writes where it wrote two pieces ago ([`Piece::ALL`]), and
//! when others offered what they computed since, they had been asked to copy that before. By the same a card that grows its
//! memory, which waits for all it was asked, gives none back that is copied from.

mod gathers;
mod tiles;

pub use gathers::{GatherWay, NoNccl, TimedGather};
pub(in crate::cuda) use gathers::{Gathers, Patience};
pub(crate) use tiles::{TilePart, TilePlace};

use super::{
    Card, CardError, CardInput, CardStage, Columns, Job, Pass, Piece, Share,
    machine::{Machine, Rectangle},
    stage,
    step::Step,
};
use crate::{
    engine::StageKey,
    models::Outline,
    pages::{Layout, PAGE_BYTES},
};
use std::sync::Arc;
use tsnode_protocol::Token;

/// Brings weights to cards, from any thread, while they compute.
#[derive(Clone, Debug)]
pub(crate) struct CardCarrier(Vec<Arc<dyn Machine>>);

impl CardCarrier {
    /// Copies a stage to the cards, a part of it to each, and waits until it is there; if one cannot take it none has it.
    pub fn carry<'a>(&self, parts: impl Iterator<Item = (Outline<'a>, Layout)>) -> Result<Vec<CardStage>, CardError> {
        let cards = self.0.iter().zip(parts);
        cards.map(|(machine, (outline, layout))| CardStage::load(machine, &outline, &layout)).collect()
    }
}

/// One card, or several with a rank each.
#[derive(Debug)]
pub(crate) struct Cards {
    each: Vec<Card>,
    /// Of the step at hand, by card; kept from step to step.
    steps: Vec<Step>,
    columns: Vec<Columns>,
    gathers: Gathers,
    /// A card's part of a tile.
    packed: Vec<u8>,
}

impl Cards {
    /// Of one card or more, with memory of so many pages on each.
    pub fn new(mut each: Vec<Card>, pages: impl Fn(usize) -> usize) -> Result<Self, CardError> {
        if each.is_empty() {
            return Err(CardError::Missing("no card".into()));
        }
        for (rank, card) in each.iter_mut().enumerate() {
            card.reserve(pages(rank) * PAGE_BYTES)?;
        }
        // Memory that pages leave is what NCCL may take.
        let machines = each.iter().map(|card| card.machine.clone()).collect();
        let gathers = Gathers::among(machines, Patience::default())?;
        Ok(Self { each, steps: Vec::new(), columns: Vec::new(), gathers, packed: Vec::new() })
    }

    /// How they put their columns side by side; none where there is one card.
    pub fn gathers(&self) -> Option<&GatherWay> {
        self.gathers.way()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// What brings weights to them.
    pub fn carrier(&self) -> CardCarrier {
        CardCarrier(self.each.iter().map(|card| card.machine.clone()).collect())
    }

    /// Takes a stage that was brought here, a part of it on each.
    pub fn put(&mut self, key: StageKey, parts: Vec<CardStage>) {
        self.each.iter_mut().zip(parts).for_each(|(card, part)| card.put(key, part));
    }

    pub fn unload(&mut self, key: StageKey) {
        // What fails is an error of what is asked next.
        let _ = self.gathers.settle();
        self.each.iter_mut().for_each(|card| card.unload(key));
    }

    /// Computes a step; it is under way when this returns.
    pub fn start(&mut self, job: &Job<'_>) -> Result<(), CardError> {
        if let ([only], [share]) = (self.each.as_mut_slice(), job.shares) {
            return only.start(job, share);
        }
        let started = self.start_together(job);
        if started.is_err() {
            self.come_to_rest();
        }
        started
    }

    /// What one still copies from another of a step that failed must not be written by the next.
    fn come_to_rest(&mut self) {
        let _ = self.gathers.settle();
        // A card that is lost copies nothing any more.
        self.each.iter().for_each(|card| drop(card.machine.finish()));
    }

    fn start_together(&mut self, job: &Job<'_>) -> Result<(), CardError> {
        self.steps.clear();
        for (card, share) in self.each.iter_mut().zip(job.shares) {
            self.steps.push(card.send(job, share)?);
        }
        self.enter(job)?;
        for layer in 0..stage(&self.each[0].stages, job.stage)?.layers() {
            for piece in Piece::ALL {
                self.columns.clear();
                for ((card, share), step) in self.each.iter_mut().zip(job.shares).zip(&self.steps) {
                    self.columns.push(card.piece(job, share, step, layer, piece)?);
                }
                self.gathers.put_side_by_side(&self.columns)?;
            }
        }
        for (card, step) in self.each.iter_mut().zip(&self.steps) {
            card.end(job.stage, step)?;
        }
        self.head(job)
    }

    /// Rows enter the first card, which has the table of tokens, and go from there to the others.
    fn enter(&mut self, job: &Job<'_>) -> Result<(), CardError> {
        let Some((first, others)) = self.each.split_first_mut() else { return Ok(()) };
        first.take_rows(job)?;
        if matches!(job.rows, CardInput::Tokens(_)) {
            first.embed(job.stage, &self.steps[0])?;
        }
        let width = self.steps[0].rows * stage(&first.stages, job.stage)?.width * 4;
        let (offer, from) = (first.machine.offer()?, first.work.hidden.at());
        for other in others {
            let to = other.work.hidden.fit(width)?;
            let rows = Rectangle { from, from_pitch: width, to, to_pitch: width, width, rows: 1 };
            other.machine.fetch(offer, rows)?;
        }
        Ok(())
    }

    /// Logits of all cards, side by side on the first, which chooses tokens by them.
    fn head(&mut self, job: &Job<'_>) -> Result<(), CardError> {
        self.columns.clear();
        for (card, step) in self.each.iter_mut().zip(&self.steps) {
            self.columns.extend(card.head(job.stage, step)?);
        }
        if self.columns.is_empty() {
            return Ok(());
        }
        self.gathers.put_on_first(&self.columns)?;
        if job.choices.is_empty() { Ok(()) } else { self.each[0].choose(job.stage, &self.steps[0]) }
    }

    /// Waits for a step's logits, `[row][vocab]`.
    pub fn logits(&mut self, job: &Job<'_>, out: &mut Vec<f32>) -> Result<(), CardError> {
        self.others_are_done()?;
        self.each[0].logits(job, out)
    }

    /// Waits for a step's rows, for the next stage.
    pub fn hidden(&mut self, job: &Job<'_>, rows: usize, out: &mut Vec<f32>) -> Result<(), CardError> {
        self.others_are_done()?;
        self.each[0].hidden(job, rows, out)
    }

    /// Waits for the tokens chosen.
    pub fn tokens(&mut self, job: &Job<'_>) -> Result<Vec<Token>, CardError> {
        self.others_are_done()?;
        self.each[0].tokens(job)
    }

    /// Waits for all cards but the first: what it has of one that was lost meanwhile is no result.
    fn others_are_done(&mut self) -> Result<(), CardError> {
        self.gathers.settle()?;
        self.each.iter().skip(1).try_for_each(|card| card.machine.finish())
    }

    /// Whether all of them still do what they are asked for.
    pub fn check(&self) -> Result<(), CardError> {
        self.each.iter().try_for_each(Card::check)
    }

    /// Has what leaves wait until a layer's keys and values are stored.
    pub fn wait_for_layer(&self, layer: usize) -> Result<(), CardError> {
        self.each.iter().try_for_each(|card| card.wait_for_layer(layer))
    }
}

impl Card {
    fn piece(
        &mut self,
        job: &Job<'_>,
        share: &Share<'_>,
        step: &Step,
        layer: usize,
        piece: Piece,
    ) -> Result<Columns, CardError> {
        let pass = Pass { step, layout: share.layout, marks: job.marks };
        stage(&self.stages, job.stage)?.piece(&mut self.ops, &mut self.work, pass, layer, piece)
    }

    fn end(&mut self, key: StageKey, step: &Step) -> Result<(), CardError> {
        stage(&self.stages, key)?.end(&mut self.ops, &mut self.work, step)
    }
}

impl Drop for Cards {
    fn drop(&mut self) {
        // The memory of one goes while another may still copy from it.
        if self.each.len() > 1 {
            self.come_to_rest();
        }
    }
}
