//! The matcher: posted receives on one side, waiting messages on the other, and never a pair that fits.

use crate::ids::OpId;
use crate::slab::SlabKey;

use super::posted::Posted;
use super::unexpected::Unexpected;
use super::{
    Arrival, Envelope, MatchError, MatcherBounds, Message, MessageKey, Pattern, Placement, PostOutcome,
    Receive,
};

/// Matches the messages and receives of one port. `U` describes the payload of a waiting message for the caller.
#[derive(Clone)]
pub struct Matcher<U> {
    bounds: MatcherBounds,
    posted: Posted,
    unexpected: Unexpected<U>,
}

impl<U> core::fmt::Debug for Matcher<U> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Matcher({} posted, {} waiting)", self.posted_len(), self.unexpected_len())
    }
}

impl<U> Matcher<U> {
    /// A matcher with nothing posted and nothing waiting.
    #[must_use]
    pub fn new(bounds: MatcherBounds) -> Matcher<U> {
        Matcher { bounds, posted: Posted::new(), unexpected: Unexpected::new() }
    }

    /// Posts a receive, or gives it the waiting message that arrived first among those it takes.
    ///
    /// # Errors
    /// [`MatchError::PostedFull`] if it would have to wait (a multi-receive: could have to), and there is no room.
    pub fn post(&mut self, mut receive: Receive) -> Result<PostOutcome<U>, MatchError> {
        let full = self.posted.len() >= self.bounds.posted_max;
        if full && receive.multi.is_some() {
            return Err(MatchError::PostedFull { posted_max: self.bounds.posted_max });
        }
        let Some(key) = self.unexpected.find(&receive.pattern) else {
            return self.append(receive).map(|()| PostOutcome::Posted);
        };
        let Some(message) = self.unexpected.remove(key) else { unreachable!("found, but not there") };
        let placement = receive.place(message.envelope.bytes);
        let rest = (!placement.last).then_some(receive);
        Ok(PostOutcome::Matched { key: MessageKey(key), message, placement, rest })
    }

    /// Gives an arrived message to the receive posted first among those that take it, or else lets it wait
    /// with the result of `payload`. `finished`: the caller has all of its bytes.
    ///
    /// # Errors
    /// [`MatchError::UnexpectedFull`] if it would have to wait and there is no room; `payload` is not called then.
    pub fn arrive(
        &mut self,
        envelope: Envelope,
        finished: bool,
        payload: impl FnOnce() -> U,
    ) -> Result<Arrival, MatchError> {
        if let Some((receive, placement)) = self.take_receive(&envelope) {
            return Ok(Arrival::Matched { receive, placement });
        }
        self.room_for_message()?;
        let message = Message { envelope, finished, payload: payload() };
        Ok(Arrival::Unexpected(MessageKey(self.unexpected.append(message))))
    }

    /// The first half of [`Matcher::arrive`], for callers that must look at their own bounds before a message may wait:
    /// the receive that takes the message, as it was before.
    pub fn take_receive(&mut self, envelope: &Envelope) -> Option<(Receive, Placement)> {
        self.posted.take(envelope)
    }

    /// The second half of [`Matcher::arrive`]: lets a message wait that no posted receive takes.
    ///
    /// # Errors
    /// [`MatchError::UnexpectedFull`].
    pub fn hold(&mut self, message: Message<U>) -> Result<MessageKey, MatchError> {
        debug_assert!(!self.posted.takes(&message.envelope), "a posted receive waits for this message");
        self.room_for_message()?;
        Ok(MessageKey(self.unexpected.append(message)))
    }

    /// Whether a message with this envelope would find a posted receive. Changes nothing.
    #[must_use]
    pub fn is_awaited(&self, envelope: &Envelope) -> bool {
        self.posted.takes(envelope)
    }

    /// The message that a receive with this pattern would take. It goes on waiting.
    pub fn peek(&mut self, pattern: &Pattern) -> Option<(MessageKey, &Message<U>)> {
        let key = self.unexpected.find(pattern)?;
        Some((MessageKey(key), self.unexpected.message(key)?))
    }

    /// Sets the message aside that a receive with this pattern would take. From now on only
    /// [`Matcher::receive_claimed`] and [`Matcher::discard`] can take it; it still counts as waiting.
    pub fn claim(&mut self, pattern: &Pattern) -> Option<(MessageKey, &Message<U>)> {
        let key = self.unexpected.find(pattern)?;
        self.unexpected.claim(key);
        Some((MessageKey(key), self.unexpected.message(key)?))
    }

    /// Takes a claimed message into a buffer of `bytes_max` bytes.
    ///
    /// # Errors
    /// [`MatchError::NotClaimed`].
    pub fn receive_claimed(
        &mut self,
        key: MessageKey,
        bytes_max: u64,
    ) -> Result<(Message<U>, Placement), MatchError> {
        if !self.unexpected.is_claimed(key.0) {
            return Err(MatchError::NotClaimed { key });
        }
        let Some(message) = self.unexpected.remove(key.0) else { unreachable!("claimed, but not there") };
        let placement = Placement { offset: 0, bytes: message.envelope.bytes.min(bytes_max), last: true };
        Ok((message, placement))
    }

    /// Takes a waiting message out, claimed or not; the caller has to discard the rest of it that is still to
    /// come. `None` if it no longer waits.
    pub fn discard(&mut self, key: MessageKey) -> Option<Message<U>> {
        self.unexpected.remove(key.0)
    }

    /// Takes back a receive that no message was given to (a multi-receive: that can still take messages). `None` if it is
    /// not posted: it was matched, or never was.
    pub fn cancel(&mut self, op: OpId) -> Option<Receive> {
        self.posted.cancel(op)
    }

    /// A waiting message, claimed or not.
    #[must_use]
    pub fn message(&self, key: MessageKey) -> Option<&Message<U>> {
        self.unexpected.message(key.0)
    }

    /// The payload of a waiting message, claimed or not, to add to it.
    #[must_use]
    pub fn payload_mut(&mut self, key: MessageKey) -> Option<&mut U> {
        self.unexpected.message_mut(key.0).map(|message| &mut message.payload)
    }

    /// Notes that all of a waiting message's payload is there; false if the message no longer waits.
    pub fn finish(&mut self, key: MessageKey) -> bool {
        match self.unexpected.message_mut(key.0) {
            Some(message) => {
                message.finished = true;
                true
            }
            None => false,
        }
    }

    /// Receives that wait.
    #[must_use]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }

    /// Messages that wait, claimed ones included.
    #[must_use]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    /// Messages that may still come to wait before [`MatchError::UnexpectedFull`].
    #[must_use]
    pub fn unexpected_free(&self) -> usize {
        self.bounds.unexpected_max.saturating_sub(self.unexpected.len())
    }

    /// The posted receives, in the order of posting: the arguments of [`Matcher::restore_posted`] after a
    /// dump.
    pub fn posted(&self) -> impl Iterator<Item = &Receive> {
        self.posted.iter()
    }

    /// The waiting messages that are not claimed, in the order of arrival.
    pub fn unexpected(&self) -> impl Iterator<Item = (MessageKey, &Message<U>)> {
        self.unexpected.iter().map(|(key, message)| (MessageKey(key), message))
    }

    /// The claimed messages, in the order of claiming.
    pub fn claimed(&self) -> impl Iterator<Item = (MessageKey, &Message<U>)> {
        self.unexpected.iter_claimed().map(|(key, message)| (MessageKey(key), message))
    }

    /// Posts a receive of a dump behind those posted, without looking at the waiting messages.
    ///
    /// # Errors
    /// [`MatchError::PostedFull`], [`MatchError::AlreadyPosted`].
    pub fn restore_posted(&mut self, receive: Receive) -> Result<(), MatchError> {
        if self.posted.contains(receive.op) {
            return Err(MatchError::AlreadyPosted { op: receive.op });
        }
        self.append(receive)
    }

    /// Lets a message of a dump wait behind those that wait, without looking at the posted receives. Its key is a new one.
    ///
    /// # Errors
    /// [`MatchError::UnexpectedFull`].
    pub fn restore_unexpected(&mut self, message: Message<U>) -> Result<MessageKey, MatchError> {
        self.restore(message, Unexpected::append)
    }

    /// Sets a claimed message of a dump aside, behind those that are. Its key is a new one.
    ///
    /// # Errors
    /// [`MatchError::UnexpectedFull`].
    pub fn restore_claimed(&mut self, message: Message<U>) -> Result<MessageKey, MatchError> {
        self.restore(message, Unexpected::append_claimed)
    }

    fn restore(
        &mut self,
        message: Message<U>,
        append: fn(&mut Unexpected<U>, Message<U>) -> SlabKey,
    ) -> Result<MessageKey, MatchError> {
        self.room_for_message()?;
        Ok(MessageKey(append(&mut self.unexpected, message)))
    }

    fn append(&mut self, receive: Receive) -> Result<(), MatchError> {
        if self.posted.len() >= self.bounds.posted_max {
            return Err(MatchError::PostedFull { posted_max: self.bounds.posted_max });
        }
        debug_assert!(!self.posted.contains(receive.op), "an operation is posted once at a time");
        self.posted.append(receive);
        Ok(())
    }

    fn room_for_message(&self) -> Result<(), MatchError> {
        if self.unexpected.len() >= self.bounds.unexpected_max {
            return Err(MatchError::UnexpectedFull { unexpected_max: self.bounds.unexpected_max });
        }
        Ok(())
    }

    /// Slots that memory is held for, posted and unexpected.
    #[cfg(test)]
    pub(super) fn slots(&self) -> (usize, usize) {
        (self.posted.slots(), self.unexpected.slots())
    }
}
