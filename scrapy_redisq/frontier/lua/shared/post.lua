-- Posts: links of pages of this shard to other shards, which have other logs. A page's end leaves a
-- post here, in the same script, with the links that their shards may yet lose. The post is removed
-- when they no longer can. No script looks into it.
--
-- Include  shared/counts

-- posts is {{id, links}...}; other workers may take them after `hold` us.
local function keep_posts(posts, hold)
  for _, item in ipairs(posts) do
    local id, links = unpack(item)
    count('posted', redis.call('ZADD', POST, NOW + hold, id))
    redis.call('HSET', POSTED, id, links)
  end
end

local function remove_posts(ids)
  in_chunks(#ids, function(first, last)
    count('posted', -redis.call('ZREM', POST, unpack(ids, first, last)))
    redis.call('HDEL', POSTED, unpack(ids, first, last))
  end)
end
