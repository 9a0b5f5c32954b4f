//! A codec and a queue for streams that are idle most of the time.

use std::marker::PhantomData;

use futures_util::stream::{Map, StreamExt as _};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Size of the buffer that each direction of a stream has from its start. A longer message gets
/// more. tonic's default is 8 KiB, which is most of the memory of an idle stream.
const BUFFER_BYTES: usize = 256;
/// A stream sends its encoded messages when they have this many bytes, as in tonic's default.
const SEND_BYTES: usize = 32 << 10;

/// Encodes messages `T` and decodes messages `U`.
pub(crate) struct SmallBuffers<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallBuffers<T, U> {
    fn default() -> Self {
        SmallBuffers(PhantomData)
    }
}

impl<T, U> Codec for SmallBuffers<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER_BYTES, SEND_BYTES))
    }
}

/// A response of a stream, or its error. It is boxed because a queue reserves memory for 32 items.
pub(crate) type Boxed<T> = Result<Box<T>, Status>;

pub(crate) type Responses<T> = Map<ReceiverStream<Boxed<T>>, fn(Boxed<T>) -> Result<T, Status>>;

/// Returns the stream of the responses that the sender sends. At most `unsent_max` wait.
pub(crate) fn responses<T>(unsent_max: usize) -> (mpsc::Sender<Boxed<T>>, Responses<T>) {
    let (sender, responses) = mpsc::channel(unsent_max);
    (sender, ReceiverStream::new(responses).map(|response| response.map(|boxed| *boxed)))
}
